"""Browsers cache Plotly's script until it changes; other files keep Streamlit's headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stallwatch_dashboard import middleware
from stallwatch_dashboard.middleware import PlotlyCache

SCRIPT = "/component/stallwatch_dashboard.pages.board.plotly/plotly.min.js"
OURS = "/component/stallwatch_dashboard.pages.board.board/board.js"


Answer = Callable[..., tuple[int, dict[bytes, bytes], bytes]]


@pytest.fixture
def answer(ask_app: Callable[..., Any]) -> Answer:
    """Return the response of the caching middleware to a browser with a cached version."""

    def ask(path: str, status: int = 200, has: bytes = b"") -> tuple[int, dict[bytes, bytes], bytes]:
        async def application(_scope: Any, _receive: Any, send: Any) -> None:
            headers = [(b"Cache-Control", b"public"), (b"content-type", b"text/javascript")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"x"})

        headers = [(b"if-none-match", has)] if has else []
        sent = ask_app(PlotlyCache(application), {"type": "http", "path": path, "headers": headers})
        found = {name.lower(): value for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, sent[1]["body"]

    return ask


def test_script_is_cached_until_its_version_changes(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "version", lambda _name: "6.1")
    status, headers, body = answer(SCRIPT)
    assert (status, body, headers[b"content-type"]) == (200, b"x", b"text/javascript")
    assert b"no-cache" in headers[b"cache-control"] and b"max-age" not in headers[b"cache-control"]
    mark = headers[b"etag"]
    assert answer(SCRIPT, has=mark) == (304, {b"cache-control": b"public, no-cache", b"etag": mark}, b"")
    assert answer(SCRIPT, has=mark.removeprefix(b"W/"))[0] == 304  # some proxies remove the prefix
    monkeypatch.setattr(middleware, "version", lambda _name: "6.1.1")
    assert answer(SCRIPT, has=mark)[::2] == (200, b"x")


@pytest.mark.parametrize(("path", "status"), [(SCRIPT, 404), (OURS, 200)])
def test_other_responses_are_unchanged(answer: Answer, path: str, status: int) -> None:
    headers = {b"cache-control": b"public", b"content-type": b"text/javascript"}
    assert answer(path, status, has=b'W/"other"') == (status, headers, b"x")


def test_cached_script_is_that_of_plotly() -> None:
    from pathlib import Path

    import plotly

    from stallwatch_dashboard import pages

    assert (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").is_file()
    assert "/plotly.min.js" in (Path(pages.__file__).parent / "board_frontend" / "index.html").read_text()
