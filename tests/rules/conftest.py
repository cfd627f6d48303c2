"""Rule pages made for a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

PageText = Callable[..., str]
WritePage = Callable[..., Path]

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
    """The text of a valid page; keyword arguments replace front matter keys (``None`` leaves the key out)."""
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


@pytest.fixture
def page_text() -> PageText:
    """``page_text(id=…, patterns=…)`` makes a valid page's text."""
    return make_page


@pytest.fixture
def write_page(tmp_path: Path) -> WritePage:
    """``write_page("some-id", patterns=…)`` writes ``<tmp_path>/pages/memory/some-id.md``."""

    def write(rule: str, *, family: str = "memory", text: str | None = None, **front: object) -> Path:
        path = tmp_path / "pages" / family / f"{rule}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            make_page(id=rule, family=family, **front) if text is None else text, encoding="utf-8"
        )
        return path

    return write
