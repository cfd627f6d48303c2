"""Rule pages made for a test, and lines read from bytes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import parse_page
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line

sys.path.insert(0, str(Path(__file__).parent))  # for smallruns.py

PageText = Callable[..., str]
WritePage = Callable[..., Path]
ReadLines = Callable[..., list[Line]]

_BODY = """\
## What happened
The allocator
found no room.

## Why
Too much was asked for.

## Fix
1. {deepspeed<0.15.4} Upgrade DeepSpeed.
2. Ask for less:
   ```bash
   export SIZE=1
     # kept as it is
   ```

## 中文
### 发生了什么
显存不够，
训练停止。

### 原因
申请太多。

### 处理
1. {deepspeed<0.15.4} 升级 DeepSpeed。
2. 减少用量。

"""


def make_page(
    *,
    body: str = _BODY,
    fires: tuple[str, ...] = ("out of room",),
    quiet: tuple[str, ...] = ("room",),
    **front: object,
) -> str:
    """Return the text of a valid page; keyword arguments replace front matter (``None`` drops a key)."""
    values: dict[str, object] = {
        "id": "no-room",
        "title": "No room",
        "title_zh": "空间不足",
        "family": "memory",
        "role": "cause",
        "harm": "fatal",
        "status": "stable",
        "since": "0.1.0",
        "patterns": ["out of room"],
        **front,
    }
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
        if value is not None
    ]
    samples = [
        f"```log {kind}\n{text}\n```\n"
        for kind, texts in (("fires", fires), ("quiet", quiet))
        for text in texts
    ]
    return "\n".join(["---", *lines, "---", body, *samples])


@pytest.fixture(scope="session")
def page_text() -> PageText:
    """Return a function that makes a valid page's text: ``page_text(id=…, patterns=…)``."""
    return make_page


@pytest.fixture
def write_page(tmp_path: Path) -> WritePage:
    """Return a function that writes a page.

    For example, ``write_page("some-id", patterns=…)`` writes ``<tmp_path>/pages/memory/some-id.md``.
    """

    def write(rule: str, *, family: str = "memory", text: str | None = None, **front: object) -> Path:
        path = tmp_path / "pages" / family / f"{rule}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            make_page(id=rule, family=family, **front) if text is None else text, encoding="utf-8"
        )
        return path

    return write


@pytest.fixture(scope="session")
def few_rules(page_text: Callable[..., str], catalogue: Catalogue) -> Catalogue:
    """Return a catalogue of small rules for tests of how a run is read."""

    def page(rule: str, family: str = "memory", **front: object) -> object:
        patterns = front.get("patterns")
        fires = ("anything",) if patterns == [] else (str(patterns[0]).replace("\\", ""),)  # type: ignore[index]
        known = catalogue.pages.get(rule)  # code finds rules by their tags
        front.setdefault("tags", sorted(known.tags) if known is not None else [])
        text = page_text(id=rule, family=family, title=f"Title of {rule}", fires=fires, **front)
        return parse_page(text, f"{family}/{rule}.md")

    trace = {"patterns": ["Invalidate trace cache @ step"], "harm": "by-progress"}
    overflow = {"patterns": ["OVERFLOW! Rank \\d+ Skipping step"], "harm": "by-progress"}
    pages = [
        page("cuda-oom", patterns=["OutOfMemoryError: CUDA out of memory"], explains=["collective-timeout"]),
        page("bad-node", patterns=["node is bad"], requires=["running on a10"]),
        page("disk-full", patterns=["No space left on device"]),
        page("loss-nan", "numerics", patterns=["'loss': nan"], tags=["nan-loss"]),
        page("network-retry", patterns=["entering retry loop"], harm="harmless", role="notice"),
        page(
            "collective-timeout",
            "collectives",
            patterns=["collective operation timeout"],
            role="symptom",
            tags=["awaits-peer"],
        ),
        page("child-failed", "scheduler-and-process", patterns=["ChildFailedError"], role="wrapper"),
        page(
            "secondary-sigterm-cascade",
            "scheduler-and-process",
            patterns=["closing signal SIGTERM"],
            role="symptom",
        ),
        page(
            "grad-norm-nan",
            "numerics",
            patterns=["'grad_norm': nan"],
            harm="degrading",
            tags=["nan-gradient"],
        ),
        page(
            "keyboard-interrupt",
            "scheduler-and-process",
            patterns=["^KeyboardInterrupt"],
            role="notice",
            harm="harmless",
            tags=["interrupt"],
        ),
        page("zero3-trace-cache-invalidated", "deepspeed-zero3", **trace),
        page("fp16-overflow-every-step", "numerics", **overflow),
        page("silent-hang-no-error", "stalls", patterns=[], role="symptom"),
        page("step-time-degraded", "performance", patterns=[], harm="degrading"),
        page("host-oom-sigkill", "memory", patterns=["Out of memory: Killed process"]),
    ]
    return Catalogue.of(pages)  # type: ignore[arg-type]


@pytest.fixture
def diagnose(few_rules: Catalogue) -> Callable[..., Diagnosis]:
    """Return a function that diagnoses ``"text"`` or ``{"rank0.log": "text"}``.

    Without a language, the diagnosis contains facts instead of texts.
    """

    def ask(texts: str | dict[str, str], language: str | None = "en", **question: object) -> Diagnosis:
        reading = RunReading(few_rules)
        for name, text in ({"run.log": texts} if isinstance(texts, str) else texts).items():
            number = re.match(r"rank(\d+)", name)
            rank = int(number[1]) if number is not None else None
            reader = LineReader(name, rank)
            reading.feed([*reader.feed(text.encode()), *reader.finish()])
        found = reading.diagnose(**question)  # type: ignore[arg-type]
        return found if language is None else rendered(found, language)

    return ask


@pytest.fixture(scope="session")
def read_lines() -> ReadLines:
    """Return a function that reads a whole file's lines: ``read_lines(b"…", rank, time)``.

    The scope is the session, as hypothesis requires.
    """

    def read(data: bytes, rank: int | None = None, time: float | None = None) -> list[Line]:
        reader = LineReader("train.log", rank)
        return reader.feed(data, time) + reader.finish(time)

    return read


@pytest.fixture(scope="session")
def line_texts(read_lines: ReadLines) -> Callable[[bytes], list[str]]:
    """Return a function that returns the texts of a whole file's lines: ``line_texts(b"…")``."""

    def texts(data: bytes) -> list[str]:
        return [line.text for line in read_lines(data)]

    return texts
