"""Pages show hostile text from logs, names and rules as plain text."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.scraper import TargetStatus
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.safetext import cell, escaped_page, plain, verbatim
from stallwatch_dashboard.settings import DashboardSettings, to_environment
from stallwatch_dashboard.theme import STYLE
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.markdown import to_markdown
from stallwatch_rules.stacks.records import StackGroup, StallStacks

pytest.importorskip("streamlit.testing.v1")
from drivenpages import page, runs_shown
from streamlit.testing.v1 import AppTest

pytestmark = pytest.mark.usefixtures("page_settings")

TEXT = (
    "<script>alert(1)</script> <img src=x onerror=alert(2)> &lt;b&gt; **bold** `code`"
    " [x](javascript:alert(3)) ![i](http://evil.example/i.png) http://evil.example"
    " $x^2$ :red[y] :material/delete: :smile:"
    " \x1b[31mred\x1b[0m \u202eright-to-left\u202c \x00 \u200b 😀 | cell | %{y} </code></pre>"
)
LONG = f"{TEXT} {'long ' * 20_000}"

#: Active characters of Streamlit's Markdown without a backslash before them.
_ACTS = re.compile(
    r"(?<!\\)(?:<script|<img|</|&lt;|\*\*bold|\]\(javascript|!\[i|\$x|:red\[|:material/delete|:smile:"
    r"|http://evil\.example)"
)
_UNSEEN = re.compile("[\x00\x1b\u202e\u202c\u200b]")
#: Elements that show their text unchanged.
_VERBATIM = ("choice", "code", "text", "dataframe", "component_instance", "bidi_component")
_FIELDS = (
    "body",
    "code_text",
    "label",
    "value",
    "help",
    "placeholder",
    "options",
    "default",
    "raw_values",
    "delta",
)


def shown_by(app: Any) -> Iterator[tuple[str, str]]:
    """Yield (kind of element, text) for each text of a page."""
    for element in app:
        proto = getattr(element, "proto", None)
        if element.type in ("text_input", "text_area") or getattr(proto, "body", "").strip() == STYLE.strip():
            continue  # the reader's own input, and the pages' own style
        if element.type in ("dataframe", "arrow_data_frame"):
            for name, cells in element.value.items():
                yield from (("dataframe", str(value)) for value in (name, *cells))
        elif element.type == "component_instance":
            yield from ((element.type, text) for text in _within(json.loads(element.proto.json_args)))
        elif element.type == "bidi_component":
            content = json.loads(element.proto.mixed.json or element.proto.json)
            yield from ((element.type, text) for text in _within(content))
        elif proto is not None:
            for name in _FIELDS:
                found = getattr(proto, name, None)
                if isinstance(found, str):
                    yield element.type, found
                elif found is not None and not isinstance(found, (bool, int, float)):
                    kind = "choice" if element.type in ("selectbox", "multiselect") else element.type
                    yield from ((kind, item) for item in found if isinstance(item, str))


def faults(app: Any) -> list[tuple[str, str]]:
    """Return the texts of a page that are active, hide or reverse other text, or are endless."""
    found = []
    for kind, text in shown_by(app):
        acts = _ACTS.search(text) if kind not in _VERBATIM else None
        in_chart = kind == "component_instance" and "<script" in text
        if acts or in_chart or _UNSEEN.search(text) or any(len(line) > 20_000 for line in text.split("\n")):
            found.append((kind, text[:300]))
    return found


def _within(content: Any) -> Iterator[str]:
    """Yield every text in JSON, and in figures that are JSON strings, but no numbers."""
    if isinstance(content, dict):
        for name, value in content.items():
            if name == "figure":
                yield from _within(json.loads(value))
            # an incident's id is a link target that readers do not see
            elif name not in ("bdata", "name", "key"):
                yield from _within(value)
            elif name == "name" and "type" in content:
                yield value
    elif isinstance(content, list):
        for value in content:
            yield from _within(value)
    elif isinstance(content, str):
        yield content


RULE = """---
id: house-rule
title: "{title}"
family: house
role: cause
harm: degrading
status: incubating
since: "0.2"
patterns:
  - '(?P<what>\\w+) has left the building'
---

# {title}

## What happened

{text}

## Why

{text}

## Fix

1. {text}

```log fires
Elvis has left the building
```

```log quiet
Elvis is in the building
```
"""


def checked(app: AppTest, shows: str = "alert(1)") -> AppTest:
    """Return the page, after a check that it shows the text unchanged."""
    assert not app.exception, [item.value for item in app.exception]
    assert faults(app) == []
    everything = "\n".join(text.replace("\\", "") for _, text in shown_by(app))
    assert shows in everything
    return app


@pytest.fixture
def incident(home: Path, make_incident: Callable[..., Incident]) -> Incident:
    """Return an open incident whose texts are all hostile."""
    groups = [
        StackGroup([0], "collective", what=TEXT, place=TEXT, frames=[TEXT, LONG]),
        StackGroup([1], "code", place=TEXT, frames=[TEXT]),
    ]
    stacks = StallStacks(time.time(), 0.1, groups, [1], "elsewhere")
    now = time.time()
    made = make_incident(
        id="hostile/1",
        rule=f"no-rule {TEXT}",
        opened_at=now - 10,
        updated_at=now,
        host=TEXT,
        note=LONG,
        evidence=[TEXT, LONG, TEXT, TEXT, "last"],
        stacks=stacks,
    )
    store = IncidentStore.at_home(home)
    store.upsert(made)
    store.upsert(replace_run(made))
    store.close()
    return made


def replace_run(incident: Incident) -> Incident:
    """Return the same incident for a run with a hostile name."""
    import msgspec

    return msgspec.structs.replace(incident, id="hostile/2", run=f"named {TEXT}")


@pytest.fixture
def run(make_run: Callable[..., RunFolder], incident: Incident) -> str:
    """Create a run with hostile lines, and metrics of another run with a hostile name, phase and labels."""
    now = time.time()
    make_run("stuck", now=now, lines={0: [TEXT, LONG, "step 1 loss 2.0", TEXT]}, host=TEXT)
    other = f"named {TEXT}"
    label = '{"stallwatch_phase": "<script>alert(1)</script>"}'
    for offset in (3.0, 2.0):
        readings = [
            Reading(other, "stallwatch_step", None, "", 100 - offset),
            Reading(other, "stallwatch_loss", 0, "", offset),
            Reading(other, "stallwatch_phase", None, label, 1.0),
            Reading(other, "stallwatch_dropped_records_total", None, "", 5.0),
            Reading("stuck", "stallwatch_step", None, "", 100 - offset),
            Reading("stuck", "stallwatch_loss", 0, "", offset),
        ]
        shared().store.write(readings, now - offset)  # type: ignore[attr-defined]
    return other


def test_runs_page_shows_hostile_text_as_text(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = TargetStatus(url=f"http://{TEXT}", run=None, error=LONG)
    monkeypatch.setattr(shared(), "targets", lambda: [failing])
    app = checked(page("runs"))
    assert any("alert(1)" in item["Phase"] for item in runs_shown(app))


def test_run_page_shows_hostile_lines_as_text(run: str) -> None:
    app = page("run", run="stuck", **{"with": run})
    app.toggle(key="around-stuck").set_value(True).run()
    checked(app)


def test_run_page_shows_a_hostile_name_as_text(run: str) -> None:
    checked(page("run", run=run))
    checked(page("run", run=f"unknown {TEXT}"))


def test_incidents_page_shows_hostile_text_as_text(run: str, incident: Incident) -> None:
    checked(page("incidents"))
    app = checked(page("incidents", incident=incident.id))
    app.text_input(key="person").input(TEXT[:80]).run()
    app.button(key="acknowledge").click().run()
    app.text_area(key="note_text").input(TEXT)
    app.get("button")[-1].click().run()
    checked(app)
    checked(page("incidents", incident=f"none {TEXT}"))


def test_post_mortem_shows_hostile_text_as_text(home: Path) -> None:
    log = [
        TEXT,
        LONG,
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "    f()",
        f"OddError: {TEXT}",
    ]
    files = [(f"{TEXT}.log", "\n".join(log).encode(), "text/plain"), (f"b{TEXT}.gz", b"\x1f\x8b\x08x", "")]
    app = page("postmortem")
    app.get("file_uploader")[0].set_value(files).run()
    checked(app)
    found = app.session_state["reports"][None].found
    html, text = to_html(found), to_markdown(found)
    assert "alert(1)" in html and "<script" not in html and "<img" not in html and "\u202e" not in html
    assert "alert(1)" in text and not re.search("[\x00\x1b\u202e]", text)
    app.button(key="keep_report").click().run()
    checked(app)
    kept = app.query_params["report"]
    checked(page("postmortem", report=kept[0] if isinstance(kept, list) else kept))
    checked(page("postmortem"))
    checked(page("postmortem", report=TEXT))


def test_custom_rule_page_shows_hostile_text_as_text(
    page_settings: DashboardSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rules" / "house"
    folder.mkdir(parents=True)
    words = (
        "<script>alert(1)</script> $HOME and $x$ :red[y] :material/delete: ![i](http://evil.example/i.png)"
    )
    rule_page = RULE.format(title="<script>alert(1)</script> :red[y]", text=words)
    (folder / "house-rule.md").write_text(rule_page)
    for name, value in to_environment(replace(page_settings, rules=(str(tmp_path / "rules"),))).items():
        monkeypatch.setenv(name, value)
    app = page("rules", rule="house-rule")
    assert not app.exception
    shown = "\n".join(str(item.value) for item in app.markdown)
    assert "alert(1)" in shown
    for acts in (r"\$x", r":red\[", r":material/", r"!\["):
        assert not re.search(rf"(?<!\\){acts}", shown), acts
    assert not any(item.allow_html for item in app.markdown)


def test_rules_page_accepts_hostile_search_text() -> None:
    app = page("rules", q=TEXT, rule=TEXT)
    app.text_input(key="pattern").input(r"(?P<what>.*)bold").run()
    app.text_area(key="trial_lines").input(TEXT).run()
    app.text_area(key="draft_lines").input(f"Traceback (most recent call last):\nOddError: {TEXT}\n").run()
    checked(app)


def test_health_page_shows_hostile_text_as_text(
    run: str, page_settings: DashboardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = TargetStatus(url=f"http://{TEXT}", run=TEXT, error=LONG)
    monkeypatch.setattr(shared(), "targets", lambda: [failing])
    checked(page("health"))


def test_text_of_a_rule_page_keeps_only_its_markdown() -> None:
    own = "Set `$A:red[x]` or $HOME at 10:30, see https://x.example/a:b, **n** :red[x] ![i](u)\n```\n$B\n```"
    escaped = escaped_page(own)
    assert "`$A:red[x]`" in escaped and "```\n$B\n```" in escaped and "**n**" in escaped
    assert r"\$HOME" in escaped and r"\:red[x]" in escaped and r"\![i]" in escaped and "https://x" in escaped
    assert escaped_page(escaped) == escaped


def test_verbatim_text_is_bounded_and_inactive() -> None:
    shown = verbatim(f"{TEXT}\n{LONG}\n" + "line\n" * 5000)
    assert len(shown.split("\n")) <= 2000 and max(map(len, shown.split("\n"))) <= 2000
    assert verbatim("\x1b[31ma\x1b[0m\u202eb\x00\ud800") == "ab?"
    assert verbatim("a\r\n\tb") == "a\n\tb"
    assert len(cell(LONG)) == 500 and len(plain(LONG)) == 4000 and plain("\udcff") == "?"
