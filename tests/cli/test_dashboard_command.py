from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

Stallwatch = Callable[..., Result]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "example.org"])
def test_public_address_is_refused_without_insecure(stallwatch: Stallwatch, host: str) -> None:
    pytest.importorskip("streamlit")  # Streamlit needs Python 3.11 or later here
    result = stallwatch("dashboard", "--host", host)
    assert result.exit_code == 2
    assert "--insecure" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "host", "port", "insecure"),
    [
        ([], "127.0.0.1", 8501, False),
        (["--port", "0", "--host", "::1"], "::1", 0, False),
        (["--host", "0.0.0.0", "--insecure"], "0.0.0.0", 8501, True),
    ],
)
def test_dashboard_gets_its_settings_from_the_options(
    stallwatch: Stallwatch,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    host: str,
    port: int,
    insecure: bool,
) -> None:
    messages: list[Any] = []
    monkeypatch.setattr("stallwatch_dashboard.launch.serve", lambda settings: messages.append(settings) or 7)
    assert stallwatch("dashboard", *arguments).exit_code == 7
    (settings,) = messages
    assert (settings.host, settings.port, settings.insecure) == (host, port, insecure)


def test_invalid_configuration_is_an_error(stallwatch: Stallwatch, tmp_path: Any) -> None:
    (tmp_path / "stallwatch.toml").write_text("[dashboard]\nports = 1\n")
    result = stallwatch("dashboard")
    assert result.exit_code == 2
    assert "stallwatch.toml:2: unknown key ports" in result.stderr
