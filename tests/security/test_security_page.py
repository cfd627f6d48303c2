"""SECURITY.md: each promise has a test."""

from __future__ import annotations

import re
from pathlib import Path


def test_each_promise_of_the_security_page_has_a_test(root: Path) -> None:
    rows = re.findall(
        r"^\| .+ \| \[`(\w+)(?:\.py)?`\]\((\S+)\) \|$", (root / "SECURITY.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 30
    missing = [
        f"{file}: {name}"
        for name, file in rows
        if Path(file).stem != name and f"def {name}(" not in (root / file).read_text()
    ]
    assert missing == []
