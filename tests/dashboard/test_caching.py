"""Plotly's script is fetched once a day by a browser, everything else as Streamlit says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stallwatch_dashboard.caching import Lasting


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/component/stallwatch_dashboard.pages.board.plotly/plotly.min.js", 200, b"public, max-age=86400"),
        ("/component/stallwatch_dashboard.pages.board.plotly/plotly.min.js", 404, b"public"),
        ("/component/stallwatch_dashboard.pages.board.board/board.js", 200, b"public"),
    ],
)
def test_the_lifetime(path: str, status: int, told: bytes) -> None:
    sent: list[Any] = []

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"Cache-Control", b"public"), (b"content-type", b"text/javascript")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"x"})

    async def collect(message: Any) -> None:
        sent.append(message)

    asyncio.run(Lasting(application)({"type": "http", "path": path}, None, collect))  # type: ignore[arg-type]
    headers = {name.lower(): value for name, value in sent[0]["headers"]}
    assert headers == {b"cache-control": told, b"content-type": b"text/javascript"}
    assert sent[1]["body"] == b"x"


def test_the_name_is_that_of_plotlys_script() -> None:
    from pathlib import Path

    import plotly

    from stallwatch_dashboard import pages

    assert (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").is_file()
    assert "/plotly.min.js" in (Path(pages.__file__).parent / "board_frontend" / "index.html").read_text()
