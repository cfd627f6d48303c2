"""Change of the page: refreshes and clicks of the previous page have no effect on the next."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stallwatch_dashboard.pages import common


class Context(SimpleNamespace):
    """Streamlit's context of a session: the page, its fragments, and the clicked elements."""

    page_script_hash: str
    fragment_storage: dict[str, object]
    state: dict[str, str]


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return the context of the first page, with a table that refreshes and a clicked row."""
    output = Context(page_script_hash="first", fragment_storage={}, state={})
    monkeypatch.setattr(common, "get_script_run_ctx", lambda: output)
    monkeypatch.setattr(common.st, "session_state", output.state)
    common.leave_last_page()
    output.fragment_storage["table"] = object()
    output.state.update(dict.fromkeys(common.CLICKED, "clicked"), chosen_language="zh")
    return output


def test_same_page_keeps_its_refreshes(context: Context) -> None:
    common.leave_last_page()
    assert context.fragment_storage and set(common.CLICKED) <= context.state.keys()


def test_next_page_drops_the_state_of_the_last_page(context: Context) -> None:
    context.page_script_hash = "second"
    common.leave_last_page()
    assert not context.fragment_storage
    assert not set(common.CLICKED) & context.state.keys() and context.state["chosen_language"] == "zh"


def test_unchanged_url_parameters_are_not_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[str] = []

    class Address(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            put.append(name)
            super().__setitem__(name, value)

    address = Address()
    monkeypatch.setattr(common.st, "query_params", address)
    for value in ("a", "a", "b", None, ""):
        common.into_address("run", value)
    assert (put, address) == (["run", "run"], {})
