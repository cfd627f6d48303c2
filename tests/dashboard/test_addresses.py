"""Unknown addresses lead to the intended page, or to a message that there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stallwatch_dashboard.middleware import Redirects, redirect_target


@pytest.mark.parametrize(
    ("path", "query", "there"),
    [
        ("/post-mortem", "", "/postmortem"),
        ("/Post_Mortem/", "lang=zh", "/postmortem?lang=zh"),
        ("/runs", "state=stalled&q=a+b", "/?state=stalled&q=a+b"),
        ("/Run", "run=x", "/run?run=x"),
        ("/runs", "run=x", "/run?run=x"),
        ("/runs/grpo 7b", "", "/run?run=grpo+7b"),
        ("/run/a", "run=b&lang=zh", "/run?run=a&lang=zh"),
        ("/incident/stuck/stall/rule/1", "", "/incidents?incident=stuck%2Fstall%2Frule%2F1"),
        ("/rule/cuda-oom", "", "/rules?rule=cuda-oom"),
        ("/health/now", "", "/health"),
        ("/no\r\nsuch/page?", "", "/no%0D%0Asuch"),
        ("//example.org/x", "", "/example.org"),
    ],
)
def test_misspelled_address_is_redirected(path: str, query: str, there: str) -> None:
    assert redirect_target(path, query) == there
    assert (
        redirect_target(there.partition("?")[0], there.partition("?")[2]) is None
    )  # the address leads no further


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/run", "/incidents/", "/nonsense", "/favicon.png", "/_stcore/health", "/static/js/index.js"),
        *("/component/stallwatch_dashboard.pages.board.board/index.html", "/media/x.html", "/auth/login"),
    ],
)
def test_valid_addresses_are_not_redirected(path: str) -> None:
    assert redirect_target(path) is None


@pytest.mark.parametrize(("accept", "status"), [("text/html,*/*;q=0.8", 307), ("*/*", 200)])
def test_only_page_requests_of_browsers_are_redirected(
    ask_app: Callable[..., Any], accept: str, status: int
) -> None:
    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/post-mortem",
        "query_string": b"lang=zh",
    }
    scope["headers"] = [(b"accept", accept.encode())]
    sent = ask_app(Redirects(application), scope)
    assert sent[0]["status"] == status
    assert (b"location", b"/postmortem?lang=zh") in sent[0]["headers"] or status == 200


def test_unknown_page_is_reported_with_links_to_known_pages(page_settings: object) -> None:
    testing = pytest.importorskip("streamlit.testing.v1")
    script = (
        "from streamlit.runtime.scriptrunner import get_script_run_ctx\n"
        "from stallwatch_dashboard.app import main\n"
        "import streamlit as st\n"
        "if 'told' not in st.session_state:\n"  # a browser sends the page's name once
        "    get_script_run_ctx().pages_manager.set_script_intent('', '**no**-such%20page')\n"
        "    st.session_state.told = True\n"
        "main()\n"
    )
    app = testing.AppTest.from_string(script, default_timeout=60).run()
    for _ in range(2):
        assert not app.exception
        assert app.markdown[0].value == r"## There is no page \*\*no\*\*\-such page"
        assert {link.proto.page for link in app.get("page_link")} == {
            *("", "run", "incidents", "postmortem", "rules", "health")
        }
        app.run()  # a rerun, as after the choice of a language
