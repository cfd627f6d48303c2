"""Permissions of roles; the login's secrets reach only Streamlit."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stallwatch_dashboard.access import Login, kept_cookie_secret, role_of
from stallwatch_dashboard.launch import serve, streamlit_options
from stallwatch_dashboard.settings import DashboardSettings, from_environment, to_environment
from stallwatch_exporter.settings import ServerSettings

LOGIN = Login(
    metadata_url="https://id.example.org/.well-known/openid-configuration",
    client_id="stallwatch",
    client_secret='s3cret "quoted" \\ ü',
    viewers=("@example.org", "guest@elsewhere.net"),
    operators=("Ann@Example.org", "group:oncall"),
)


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({"email": "bob@example.org"}, "viewer"),
        ({"email": "BOB@EXAMPLE.ORG"}, "viewer"),
        ({"email": "guest@elsewhere.net", "email_verified": True}, "viewer"),
        ({"email": "ann@example.org"}, "operator"),
        ({"email": "x@elsewhere.net", "groups": ["ml", "oncall"]}, "operator"),
        ({"groups": "oncall"}, "operator"),
        ({"email": "x@elsewhere.net", "groups": ["Oncall", 7, None]}, None),
        ({"email": "ann@example.org", "email_verified": False}, None),
        ({"email": "ann@example.org@evil.net"}, None),
        ({"email": "x@sub.example.org"}, None),
        ({"email": "@example.org.evil.net"}, None),
        ({"email": ["ann@example.org"]}, None),
        ({"email": "group:oncall"}, None),
        ({"name": "ann@example.org"}, None),
        ({}, None),
    ],
)
def test_roles_follow_the_claims(claims: dict[str, object], role: str | None) -> None:
    assert role_of(LOGIN, claims) == role


def test_star_admits_every_signed_in_user() -> None:
    assert role_of(replace(LOGIN, viewers=("*",)), {"sub": "1"}) == "viewer"


def test_claim_with_the_groups_is_configurable() -> None:
    claims = {"roles": ["oncall"], "groups": ["nothing"]}
    assert role_of(replace(LOGIN, groups_claim="roles"), claims) == "operator"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_secret": ""}, "login.client_secret is missing"),
        ({"client_id": ""}, "login.client_id is missing"),
        ({"metadata_url": ""}, "login.metadata_url is missing"),
        ({"metadata_url": "id.example.org"}, "is not an http(s) address"),
        ({"viewers": (), "operators": ()}, "viewers and operators are empty"),
        ({"viewers": ("example.org",)}, "invalid entry 'example.org'"),
        ({"viewers": ("group:",)}, "invalid entry 'group:'"),
    ],
)
def test_invalid_login_is_reported_before_the_start(
    changes: dict[str, object], words: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    login = replace(LOGIN, **changes)  # type: ignore[arg-type]
    assert serve(DashboardSettings(home=home, login=login)) == 2
    found = capfd.readouterr().err
    assert words in found and LOGIN.client_secret not in found


def test_cookie_secret_is_private_and_stable(tmp_path: Path) -> None:
    made = kept_cookie_secret(tmp_path)
    (path,) = tmp_path.iterdir()
    assert len(made) >= 32 and kept_cookie_secret(tmp_path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)  # other accounts may have read the file
    assert kept_cookie_secret(tmp_path) != made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_secrets_reach_streamlit_without_a_file(tmp_path: Path) -> None:
    program = (
        "import asyncio\n"
        "from stallwatch_dashboard.entry.application import app\n"
        "from stallwatch_dashboard.settings import from_environment\n"
        "told = from_environment()\n"
        "async def serve():\n"
        "    async with app.lifespan()(app): pass\n"
        "asyncio.run(serve())\n"
        "from streamlit import auth_util\n"
        "section = auth_util.get_secrets_auth_section()\n"
        "assert section['client_secret'] == told.login.client_secret\n"
        "assert auth_util.get_signing_secret() == section['cookie_secret']\n"
        "print(auth_util.get_redirect_uri(section))\n"
    )
    settings = DashboardSettings(home=tmp_path, login=LOGIN, url="https://watch.example.org/")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **streamlit_options(settings), **to_environment(settings)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "https://watch.example.org/oauth2callback"
    found = LOGIN.client_secret.encode()
    assert not [path for path in tmp_path.iterdir() if found in path.read_bytes()]


def test_settings_reach_the_serving_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = DashboardSettings(home=tmp_path, login=LOGIN, targets=("a:1",), url="https://x.example")
    settings = replace(settings, server=ServerSettings(("a.example",), token_file=tmp_path / "token"))
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert from_environment() == settings
    assert LOGIN.client_secret not in repr(settings)
