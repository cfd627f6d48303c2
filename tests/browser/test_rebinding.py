"""Limits of a real browser on what a page of another site can do to the user's dashboard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from stage import Stage

# Resolves to the outcome of a WebSocket connection to this address.
_CONNECT = """address => new Promise(resolve => {
    const socket = new WebSocket(address, ["streamlit", "PLACEHOLDER_AUTH_TOKEN"]);
    socket.onopen = () => resolve("open");
    socket.onerror = () => resolve("refused");
})"""


@pytest.fixture
def other_site(tmp_path: Path) -> Iterator[int]:
    """Yield the port of an attacker's web server."""
    (tmp_path / "index.html").write_text("<title>another site</title>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_other_site_cannot_embed_the_dashboard(  # type: ignore[no-untyped-def]
    stage: Stage, newcomer, other_site: int, tmp_path: Path
) -> None:
    stage.dashboard()
    page = newcomer.page
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    for framed in ("/health", "/_stcore/health"):
        (tmp_path / "frame.html").write_text(f"<iframe src='{stage.url}{framed}'></iframe>")
        for host in ("evil.rebound.example", "127.0.0.1"):  # another site, and another account of this host
            said.clear()
            page.goto(f"http://{host}:{other_site}/frame.html")  # wait until the frame has loaded
            (frame,) = page.main_frame.child_frames
            assert not frame.url.startswith(stage.url)
            assert any("frame-ancestors" in line for line in said)

    page.goto(f"{stage.url}/_stcore/health")  # a page of the dashboard may connect: the charts are in a frame
    with page.expect_response(f"{stage.url}/_stcore/host-config"):
        page.evaluate(
            "address => { const frame = document.createElement('iframe'); frame.src = address;"
            " document.body.append(frame); }",
            f"{stage.url}/_stcore/host-config",
        )
    (frame,) = page.main_frame.child_frames
    frame.get_by_text("allowedOrigins").wait_for()


def test_other_site_cannot_reach_the_dashboard_by_dns_rebinding(
    stage: Stage, newcomer, other_site: int
) -> None:  # type: ignore[no-untyped-def]
    stage.dashboard()
    page = newcomer.page

    # the attacker's name resolves to this machine now
    answer = page.goto(f"http://evil.rebound.example:{stage.port}/")
    assert answer.status == 421 and "allowed_hosts under [server]" in answer.text()
    assert page.evaluate(_CONNECT, f"ws://evil.rebound.example:{stage.port}/_stcore/stream") == "refused"

    # from the attacker's own server to the address itself
    page.goto(f"http://evil.rebound.example:{other_site}/")
    for host in ("127.0.0.1", "localhost"):
        assert page.evaluate(_CONNECT, f"ws://{host}:{stage.port}/_stcore/stream") == "refused"

    page.goto(f"http://127.0.0.1:{other_site}/")  # a page of another account of this host
    assert page.evaluate(_CONNECT, f"ws://127.0.0.1:{stage.port}/_stcore/stream") == "refused"

    for host in ("127.0.0.1", "localhost", "runs.localhost"):  # the user's own pages work
        page.goto(f"http://{host}:{stage.port}/")
        page.get_by_text("No runs yet").first.wait_for()
        assert page.evaluate(_CONNECT, f"ws://{host}:{stage.port}/_stcore/stream") == "open"
