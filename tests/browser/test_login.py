"""Log-in at a real OpenID Connect provider, and the pages and actions of each role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
pytest.importorskip("oidc_provider_mock", reason="oidc-provider-mock is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
import oidc_provider_mock as provider
from accessibility import faults
from stage import RECORDING, Stage

PAGES = re.compile("Runs|Run|Post-mortem|Rules|Health")
SECRET = "the-clients-secret-is-told-to-nobody"


@pytest.fixture(scope="module")
def metadata_url() -> Iterator[str]:
    """Yield the metadata URL of a complete provider: discovery, keys, the code flow with PKCE, userinfo."""
    people = [
        provider.User(sub="viewer", claims={"email": "vera@example.org", "email_verified": True}),
        provider.User(sub="operator", claims={"email": "olga@elsewhere.net", "groups": ["oncall"]}),
        provider.User(sub="stranger", claims={"email": "sam@elsewhere.net"}),
        provider.User(sub="pretender", claims={"email": "vera@example.org", "email_verified": False}),
    ]
    with provider.run_server_in_thread(user_claims=people) as server:
        yield f"http://localhost:{server.server_port}/.well-known/openid-configuration"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, metadata_url: str) -> Iterator[Stage]:
    """Yield a dashboard with a login."""
    stage = Stage(tmp_path_factory.mktemp("guarded") / "home")
    try:
        stage.process = stage.dashboard(  # type: ignore[attr-defined]
            STALLWATCH_LOGIN_METADATA_URL=metadata_url,
            STALLWATCH_LOGIN_CLIENT_ID="stallwatch",
            STALLWATCH_LOGIN_CLIENT_SECRET=SECRET,
            STALLWATCH_LOGIN_VIEWERS="@example.org",
            STALLWATCH_LOGIN_OPERATORS="group:oncall",
            STALLWATCH_ALERTS_URLS="json://127.0.0.1:9/hook",
        )
        yield stage
    finally:
        stage.close()


def sign_in(page, as_whom: str) -> None:  # type: ignore[no-untyped-def]
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name=as_whom, exact=True).click()


def test_nothing_is_visible_before_signing_in(guarded: Stage, newcomer) -> None:  # type: ignore[no-untyped-def]
    page = newcomer.page
    for path in ("", "run?run=x", "postmortem", "rules", "health"):
        page.goto(f"{guarded.url}/{path}")
        page.get_by_role("button", name="Sign in").wait_for()
        assert page.locator("input[type=file]").count() == 0
        assert page.get_by_role("link", name=PAGES).count() == 0
    assert faults(page) == []
    # Streamlit's upload address accepts no file from a session without an upload widget.
    answer = page.request.put(
        f"{guarded.url}/_stcore/upload_file/any-session/any-file",
        multipart={"file": {"name": "a.log", "mimeType": "text/plain", "buffer": b"step 1"}},
    )
    assert answer.status == 403


def test_viewer_can_read_and_cannot_act(guarded: Stage, newcomer) -> None:  # type: ignore[no-untyped-def]
    page = newcomer.page
    page.goto(f"{guarded.url}/postmortem?report=gone")  # a link in a chat leads to this page
    sign_in(page, "viewer")
    page.wait_for_url("**/postmortem?report=gone")
    page.get_by_text("· viewer").wait_for()
    page.get_by_text("Only operators can upload logs").wait_for()
    assert page.locator("input[type=file]").count() == 0
    page.get_by_test_id("stTopNav").get_by_role("link", name="Health").click()
    page.get_by_text("Only operators can send test messages").wait_for()
    assert page.get_by_role("button", name="Send a test message").count() == 0
    assert SECRET not in page.content()


def test_operator_can_upload_keep_and_delete(guarded: Stage, newcomer) -> None:  # type: ignore[no-untyped-def]
    page = newcomer.page
    page.goto(guarded.url)
    sign_in(page, "operator")
    page.get_by_text("· operator").wait_for()
    page.get_by_test_id("stTopNav").get_by_role("link", name="Post-mortem").click()
    page.locator("input[type=file]").set_input_files(sorted((RECORDING / "ranks").glob("*.log")))
    page.get_by_role("heading", name="Failed").wait_for()
    page.get_by_role("button", name="Keep this report").click()
    page.wait_for_url(re.compile("report="))
    (kept,) = (guarded.home / "reports").iterdir()
    page.goto(f"{guarded.url}/postmortem")  # a new session of the same browser
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete").wait_for(state="detached")
    assert not kept.exists()
    # If the user opens another page before the stored address is read, the user stays on that page.
    page.evaluate("sessionStorage.setItem('stallwatch-wanted', '/rules')")
    page.goto(f"{guarded.url}/health")
    page.wait_for_function("sessionStorage.getItem('stallwatch-wanted') === null")
    page.get_by_text("duckdb").first.wait_for()
    assert page.url == f"{guarded.url}/health"
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/oauth2/end_session**")  # the provider asks for confirmation of its own sign-out
    page.goto(guarded.url)
    page.get_by_role("button", name="Sign in").wait_for()


@pytest.mark.parametrize("whom", ["stranger", "pretender"])
def test_account_without_access_sees_only_a_refusal(guarded: Stage, newcomer, whom: str) -> None:  # type: ignore[no-untyped-def]
    page = newcomer.page
    page.goto(guarded.url)
    sign_in(page, whom)
    page.get_by_role("heading", name="You are signed in but do not have access to this dashboard").wait_for()
    page.get_by_role("button", name="Sign out").wait_for()
    assert page.get_by_role("link", name=PAGES).count() == 0


def test_secret_is_in_no_command_line_and_no_file(guarded: Stage) -> None:
    process = psutil.Process(guarded.process.pid)  # type: ignore[attr-defined]
    for item in (process, *process.children(recursive=True)):
        # the command line is missing if the process has just ended
        words = item.as_dict(["cmdline"])["cmdline"] or []
        assert not [word for word in words if SECRET in word]
    files = [path for path in Path(guarded.home).rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
