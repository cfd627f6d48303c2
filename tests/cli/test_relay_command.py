from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Stallwatch = Callable[..., Result]
CHAT = "json://127.0.0.1:1/s3cr3t-hook"


def test_without_a_chat_no_notification_is_possible(stallwatch: Stallwatch) -> None:
    result = stallwatch("relay")
    assert result.exit_code == 2
    assert "no chat is configured: write urls" in result.stderr


def test_taken_port_and_missing_database_are_reported(
    stallwatch: Stallwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", CHAT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = stallwatch("relay", "--port", port)
    assert result.exit_code == 2
    assert (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port with --port"
        in result.stderr
    )
    monkeypatch.setenv("STALLWATCH_ALERTS_INCIDENTS_URL", "sqlite:////nowhere/at/s3cr3t/all.db")
    result = stallwatch("relay", "--port", "0")
    assert result.exit_code == 1
    assert "the incident database cannot be opened (OperationalError" in result.stderr


def test_relay_listens_publicly_only_with_a_token_or_an_explicit_option(
    stallwatch: Stallwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", CHAT)
    result = stallwatch("relay", "--host", "0.0.0.0")
    assert result.exit_code == 2
    assert "other people can reach 0.0.0.0" in result.stderr and "--insecure" in result.stderr
    with socket.create_server(("0.0.0.0", 0)) as taken:  # the command reaches the bind call
        port = str(taken.getsockname()[1])
        result = stallwatch("relay", "--host", "0.0.0.0", "--port", port, "--insecure")
        assert f"cannot listen on 0.0.0.0:{port}" in result.stderr
        monkeypatch.setenv("STALLWATCH_RELAY_TOKEN", "s3cr3t-token")
        result = stallwatch("relay", "--host", "0.0.0.0", "--port", port)
        assert f"cannot listen on 0.0.0.0:{port}" in result.stderr


def test_chat_in_a_route_is_sufficient(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "stallwatch.toml").write_text(f'[[alerts.routes]]\nurls = ["{CHAT}"]\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = stallwatch("--config", str(tmp_path / "stallwatch.toml"), "relay", "--port", port)
    assert "cannot listen on" in result.stderr


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (
            f'[7, "{CHAT}"]',
            "THE RELAY STARTS WITHOUT THE IGNORED CHATS IN THE PRECEDING LINES: it sends messages only to json://127.0.0.1:1/**",
        ),
        ("[7]", "no chat is configured: write urls"),
        ("7", "NOBODY WILL BE NOTIFIED"),
    ],
)
def test_invalid_chat_does_not_affect_other_chats(
    stallwatch: Stallwatch, tmp_path: Path, urls: str, expected: str
) -> None:
    file = tmp_path / "stallwatch.toml"
    file.write_text(f"[alerts]\nurls = {urls}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = stallwatch("--config", str(file), "relay", "--port", port)
    assert result.exit_code == 2  # without the broken chat, the relay continues up to the port
    assert ("cannot listen on" in result.stderr) is (CHAT in urls)
    assert f"{file}:2: alerts.urls must be a list of strings" in result.stderr
    assert expected in result.stderr and "s3cr3t" not in result.stderr


@pytest.mark.parametrize(
    ("toml", "variable", "ends"),
    [
        ('[stall]\nfactor = "three"\n[exporter]\nprot = 1\n', ("STALLWATCH_RUN_KEEP_DAYS", "x"), False),
        ("[alerts\n", None, False),  # the file with chats is broken, and no other chats are configured
        ("[relay]\nport = 'x'\n", None, True),
        ("[relay]\ntokn = 'x'\n", None, True),
        ("", ("STALLWATCH_RELAY_TOKEN_FILE", "/nowhere"), True),
        ("", ("STALLWATCH_RELAY_TOKNE", "x"), True),
    ],
)
def test_only_a_wrong_listen_address_stops_the_relay(
    stallwatch: Stallwatch,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    toml: str,
    variable: tuple[str, str] | None,
    ends: bool,
) -> None:
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", CHAT)
    monkeypatch.setenv("STALLWATCH_UI_LANGUAGE", "zh")
    if variable:
        monkeypatch.setenv(*variable)
    file = tmp_path / "stallwatch.toml"
    file.write_text(toml)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = stallwatch("--config", str(file), "relay", "--port", port)
    assert result.exit_code == 2 and result.stderr
    assert ("cannot listen on" in result.stderr) is not ends  # the command reached the bind call
    assert ("relay 会照常启动，但上面忽略的渠道收不到消息" in result.stderr) is ("[alerts" in toml)


def test_relay_prints_its_address_and_stops_on_request(tmp_path: Path) -> None:
    environ = {**os.environ, "STALLWATCH_ALERTS_URLS": CHAT, "STALLWATCH_HOME": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("stallwatch")), "relay", "--port", "0"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as relay:
        assert relay.stderr is not None
        line = relay.stderr.readline()
        relay.send_signal(signal.SIGTERM)
        _, rest = relay.communicate(timeout=120)
    assert line.startswith("stallwatch: Alertmanager can post to http://127.0.0.1:")
    assert relay.returncode == 0
    assert "s3cr3t" not in line + rest and "Traceback" not in rest
