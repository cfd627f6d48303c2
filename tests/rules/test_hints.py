"""Lines that count as warnings."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

WARNINGS = [
    "x.py:1: UserWarning: old",
    "/opt/env/lib/python3.11/site-packages/x.py:12: FutureWarning: `tokenizer` is deprecated",
    "Warning: the cache is full",
    "2026-05-02 09:00:00,123 - WARNING - the cache is full",
    "[WARNING|trainer.py:812] 2026-05-02 09:00:00,123 >> the cache is full",
    "[2026-05-02 09:00:00,123] [WARNING] [engine.py:1:f] the cache is full",
    "WARN: the cache is full",
    "WARNING:root:the cache is full",
    "[rank3]:[W819 12:00:01.123456789 socket.cpp:759] Warning: the address is in use",
    "[W1121 12:00:01.123456789 socket.cpp:759] the address is in use",
    "W1121 10:12:13.456000 812 torch/distributed/run.py:792] the default is one thread",
]
NO_WARNINGS = [
    "{'loss': 0.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}",
    "learning_rate=1e-05 warming up",
    "[Worker 3] ready",
    "[W3] ready",
    "W1 accuracy 0.5",
    "import warnings; warnings.filterwarnings('ignore')",
    "WARNINGS_SEEN=3 FORWARDED",
    "{'loss': 0.5, 'WARNING': 0}",
]


@pytest.mark.parametrize("text", WARNINGS)
def test_warnings_are_counted(text: str) -> None:
    assert warnings(text) == 1


@pytest.mark.parametrize("text", NO_WARNINGS)
def test_other_lines_are_not_counted(text: str) -> None:
    assert warnings(text) == 0


def warnings(text: str) -> int:
    reading, reader = RunReading(Catalogue.of([])), LineReader("run.log")
    return len(reading.feed(reader.feed(f"{text}\n".encode())).warnings)
