"""Templates of the messages of a stream: counted, bounded, and never wrongly reported as new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch_rules.failures.raised import LinePosition
from stallwatch_rules.failures.templates import MAX_TEMPLATES, TemplateTable, level_of, looks_like_message
from stallwatch_rules.records import Line
from stallwatch_rules.text.masking import masked, repeats, skeleton


def filled(texts: list[str], start: int = 0) -> TemplateTable:
    table = TemplateTable()
    for index, text in enumerate(texts, start):
        table.add(Line(text, "run.log", index + 1), LinePosition(index, index, index))
    return table


def shown(table: TemplateTable) -> list[tuple[str, int, int, int]]:
    entries = table.entries.values()
    return sorted((e.first.text, e.count, e.first.number, e.last.number) for e in entries)


def test_lines_with_one_template_are_one_entry() -> None:
    table = filled(["queue 3 is slow", "all is well here", "queue 17 is slow", "queue 7f is slow"])
    assert shown(table) == [("all is well here", 1, 2, 2), ("queue 3 is slow", 3, 1, 4)]


def test_omitted_lines_are_counted() -> None:
    table = filled(["queue 3 is slow"])
    assert table.again(Line("queue 9 is slow", "run.log", 900), 899, count=500)
    assert not table.again(Line("something else entirely", "run.log", 901), 900)
    assert shown(table) == [("queue 3 is slow", 501, 1, 900)]


def word(number: int) -> str:
    return "".join(chr(ord("g") + int(digit)) for digit in f"{number:04}")


def test_table_of_templates_is_bounded() -> None:
    texts = [f"message about {word(number)}" for number in range(3 * MAX_TEMPLATES)]
    table = filled(texts)
    assert len(table.entries) <= MAX_TEMPLATES
    assert texts[-1] in {entry.first.text for entry in table.entries.values()}
    table.add(Line(texts[0], "run.log", 9999), LinePosition(9998, 5000, 5000))
    assert table.entries[skeleton(texts[0])].advances == -1, "it was there before any step"


def test_long_lines_are_truncated() -> None:
    table = filled(["an endless line " + "of many words " * 10_000])
    (entry,) = table.entries.values()
    assert len(entry.first.text) <= 400
    assert table.again(Line("an endless line " + "of many words " * 20_000, "run.log", 2), 1)
    assert len(entry.last.text) <= 400


MESSAGES = st.sampled_from([f"{word(n)} lost {d}" for n in range(6) for d in (3, 77)])


@given(texts=st.lists(MESSAGES), cut=st.integers(0, 20))
def test_merged_tables_equal_one_table(texts: list[str], cut: int) -> None:
    first, second = filled(texts[:cut]), filled(texts[cut:], start=min(cut, len(texts)))
    first.merge(second)
    assert first == filled(texts)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("[2026-01-02 03:04:05,678] [ERROR] [launch.py:434] ended", "error"),
        ("INFO: 0 errors were found", "info"),
        ("the socket was refused", "error"),
        ("W0102 10:00:00.123456 77 slow", "warning"),
        ("[E102 10:00:00.123 x.cpp:3] watchdog", "error"),
        ("FutureWarning: x is deprecated", "warning"),
        ("shards are written", "info"),
        ("读取文件失败", "error"),
        ("2026-03-01 17:01:52 | ERROR | stderr | INFO:     Application startup complete.", "info"),
        ("2026-03-01 17:01:52 | ERROR | stderr | the queue is empty", "info"),
        ("2026-03-01 17:01:52 | INFO | stdout | ERROR: the queue is gone", "error"),
        ("2026-03-01 17:01:52 | ERROR | server | the queue is empty", "error"),
        ("17:39:03.277 [I] [thread=save] No errors found in background save", "info"),
        ("the worker ended without errors", "info"),
        ("1 job failed, 0 errors were retried", "error"),
    ],
)
def test_level_of_a_line_is_recognized(text: str, level: str) -> None:
    assert level_of(text) == level


@pytest.mark.parametrize(
    "text",
    [
        "=" * 40,
        "| a | b |",
        "+---+---+",
        " 40%|████      | 4/10",
        "1 2 3",
        "",
        "{'a': 1}",
        "    raise Oops(x)",
    ],
)
def test_lines_without_a_message_are_ignored(text: str) -> None:
    assert not looks_like_message(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("worker 3 lost /data/part-3/x.bin", "worker <n> lost <path>"),
        ("at 0x7f12ab, id 9f86d081884c7d65", "at <hex>, id <id>"),
        ("550e8400-e29b-41d4-a716-446655440000 gone", "<id> gone"),
        ("2026-01-02T03:04:05.678Z host 10.0.0.3:29500", "<time> host <ip>"),
        ("see https://example.org/a?b=1 now", "see <url> now"),
        ("loss 1.5e-05 of deadbeef feed", "loss <n> of deadbeef feed"),
        ("read/write ratio", "read/write ratio"),
        ("bad [repeated 7x across cluster]", "bad"),
    ],
)
def test_variable_parts_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_folded_lines_of_ray_are_counted() -> None:
    assert repeats("bad [repeated 7x across cluster] (see docs)") == ("bad", 7)
    assert repeats("bad") == ("bad", 1)
