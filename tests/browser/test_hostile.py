"""Hostile text on every page of a real browser is shown, has no effect, and causes no outside request."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.copies import CriRecord, format_record
from stallwatch_exporter.runs.runfolder import RunFolder

SEEN = "<script>alert(1)</script>"
TEXT = (
    f"{SEEN} <img src=x onerror=alert(2)> ![i](http://evil.example/i.png) [x](javascript:alert(3))"
    " http://evil.example $x^2$ :red[y] :material/delete: \x1b[31mred \u202eright-to-left \x00 😀 </code>"
)
RULE = f"""---
id: house-rule
title: "{SEEN} :red[y]"
family: house
role: cause
harm: degrading
status: incubating
since: "0.2"
patterns:
  - '\\w+ has left the building'
---

# {SEEN} :red[y]

## What happened

{SEEN} $HOME and $x$ :red[y] :material/delete: ![i](http://evil.example/i.png)

## Why

<img src=x onerror=alert(2)> <b>bold</b>

## Fix

1. [x](javascript:alert(3))

```log fires
Elvis has left the building
```

```log quiet
Elvis is in the building
```
"""


def hostile_run(home: Path) -> None:
    """Create an ended run with hostile lines and an incident about them."""
    now = time.time()
    folder = RunFolder.create("hostile", ["python", TEXT.replace("\0", "")], home=home, now=now - 100)
    with (folder.path / "ranks" / "rank0.log").open("ab") as out:
        lines = [TEXT, TEXT * 500, *(f"step {n} loss 1.5" for n in range(1, 9)), TEXT]
        for number, text in enumerate(lines):
            at = int((now - 100 + number) * 1e9)
            out.write(format_record(CriRecord(at, "stdout", True, text.encode())))
    folder.write_info(updated_at=now, ended_at=now, state="failed")
    found = Incident(
        id="hostile/1",
        run="hostile",
        kind="stall",
        rule="house-rule",
        severity="critical",
        status="open",
        episode=1,
        opened_at=now - 20,
        updated_at=now,
        host=TEXT,
        note=TEXT,
        evidence=[TEXT] * 5,
    )
    store = IncidentStore.at_home(home)
    store.upsert(found)
    store.close()


def test_hostile_text_has_no_effect_on_any_page(stage, watched, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "rules" / "house"
    rules.mkdir(parents=True)
    (rules / "house-rule.md").write_text(RULE)
    hostile_run(stage.home)
    config = tmp_path / "config.toml"
    config.write_text(f"[rules]\ndirs = ['{rules.parent}']\n")
    stage.dashboard(STALLWATCH_CONFIG=str(config))
    page = watched.page
    for address in ("run?run=hostile", "incidents?incident=hostile/1", "rules?rule=house-rule"):
        page.goto(f"{stage.url}/{address}")
        page.get_by_text(SEEN).first.wait_for()
        nothing_of_it_acted(watched, stage.url)
    for address, seen in (("", "hostile"), ("incidents", "hostile"), ("health", "Versions")):
        page.goto(f"{stage.url}/{address}")
        page.get_by_text(seen).first.wait_for(state="attached")
        nothing_of_it_acted(watched, stage.url)
    page.goto(f"{stage.url}/postmortem")
    log = tmp_path / "<img src=x onerror=alert(4)>.log"
    failed = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nOddError'
    log.write_bytes(f"{TEXT}\n{failed}: {TEXT}\n".encode())
    page.locator("input[type=file]").set_input_files(log)
    page.get_by_text(SEEN).first.wait_for()
    nothing_of_it_acted(watched, stage.url)


def nothing_of_it_acted(watched, url: str) -> None:  # type: ignore[no-untyped-def]
    page = watched.page
    assert watched.dialogs == [] and watched.outside(url) == set()
    assert page.locator("img[src='x'], img[src*='evil'], a[href*='evil'], a[href^='javascript']").count() == 0
    assert page.locator(".katex").count() == 0
    assert "\u202e" not in page.locator("body").inner_text()
