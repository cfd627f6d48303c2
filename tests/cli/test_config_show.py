from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Stallwatch = Callable[..., Result]


def row(output: str, key: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith(key + " ")]
    return " ".join(line.split())


def test_values_are_shown_with_sources_and_without_secrets(
    stallwatch: Stallwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stallwatch.toml").write_text(
        "[alerts]\nurls = ['slack://s3cr3t/a/b', 'json://host:1/s3cr3t']\n"
        "incidents_url = 'postgresql://u:s3cr3t@h/db'\n[exporter]\nport = 5\n"
    )
    monkeypatch.setenv("STALLWATCH_STALL_FACTOR", "4")
    result = stallwatch("config", "show")
    assert result.exit_code == 0
    assert "s3cr3t" not in result.output
    assert row(result.stdout, "alerts.urls").startswith("alerts.urls slack://****, json://host:1/**** /")
    assert row(result.stdout, "alerts.incidents_url").startswith("alerts.incidents_url postgresql://****")
    assert row(result.stdout, "exporter.port").endswith("stallwatch.toml:5")
    assert row(result.stdout, "stall.factor") == "stall.factor 4.0 STALLWATCH_STALL_FACTOR"
    assert row(result.stdout, "ui.language") == "ui.language en default"
    assert row(result.stdout, "run.home") == f"run.home {tmp_path / 'stallwatch-home'} STALLWATCH_HOME"


def test_invalid_file_is_one_message_and_exit_code_2(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text("[exporter]\nport = \n")
    result = stallwatch("config", "show")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"stallwatch: {tmp_path / 'stallwatch.toml'}:2: is not valid TOML")
    # the other keys are still shown
    assert row(result.stdout, "exporter.port") == "exporter.port 19400 default"


def test_config_option_selects_the_file(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[exporter]\nport = 7\n")
    result = stallwatch("--config", "other.toml", "config", "show")
    assert row(result.stdout, "exporter.port").startswith("exporter.port 7 ")
    missing = stallwatch("--config", "none.toml", "config", "show")
    assert missing.exit_code == 2 and "none.toml: cannot be read" in missing.stderr
