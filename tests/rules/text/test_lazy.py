"""A pattern that is compiled at its first use behaves like one that was compiled at import."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import pytest

from stallwatch_rules.text import lazy as module
from stallwatch_rules.text.lazy import lazy


def test_lazy_pattern_behaves_like_the_pattern() -> None:
    pattern = lazy(r"(?P<step>\d+)", re.IGNORECASE)
    found = pattern.search("step 12")
    assert found is not None and found["step"] == "12"
    assert pattern.sub("n", "1 2") == "n n" and pattern.fullmatch("x") is None
    assert (pattern.pattern, pattern.groups) == (r"(?P<step>\d+)", 1) and pattern.flags & re.IGNORECASE
    assert lazy(rb"a+").match(b"aa") is not None


def test_lazy_pattern_is_compiled_once_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(pattern: str, flags: int = 0) -> re.Pattern[str]:
        made.append(pattern)
        return re._compile(pattern, flags)  # type: ignore[attr-defined,no-any-return]

    pattern = lazy("once")
    monkeypatch.setattr(module.re, "compile", counted)
    assert made == []
    assert pattern.search("once") and pattern.search("once")
    assert made == ["once"]


def test_lazy_pattern_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(lazy("a"))).search("a")


def test_agent_starts_without_modules_of_reports() -> None:
    code = (
        "import sys; import stallwatch.cli.watching, stallwatch_exporter.running.command as c;"
        "print(sorted({'rich', 'packaging', 'yaml', 'numpy', 'sqlalchemy', 'apprise'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
