"""Lines that were escaped on their way are read as the program printed them."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.unescape import MAX_PIECES, exception_lines

TRACEBACK = ["Traceback (most recent call last):", '  File "a.py", line 3, in f', "ValueError: it's odd"]
QUOTED = "\\n".join(TRACEBACK)


def read(text: str) -> list[str]:
    reader = LineReader("x")
    return [line.text for line in reader.feed(text.encode() + b"\n") + reader.finish()]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("AssertionError：Found no driver", "AssertionError: Found no driver"),
        ("torch.OutOfMemoryError： CUDA", "torch.OutOfMemoryError: CUDA"),
        ("[rank3]: ValueError：x", "ValueError: x"),
        ("训练第 3 步：ValueError：x", "训练第 3 步：ValueError：x"),  # prose
        ("Loss：2.0", "Loss：2.0"),
        ("assertion error：no config", "AssertionError: no config"),
        ("runtimeerror：x", "RuntimeError: x"),
        ("the error：x", "the error：x"),
        ("value error：0.0231", "value error：0.0231"),  # measured
        ("Memory Error：显存 23 GB", "Memory Error：显存 23 GB"),
    ],
)
def test_full_width_colon_after_an_exception_name(text: str, shown: str) -> None:
    assert read(text) == [shown]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "AttributeError: ‘NoneType’ object has no attribute ‘step’",
            "AttributeError: 'NoneType' object has no attribute 'step'",
        ),
        ("[rank3]: File “a.py”, line 3", 'File "a.py", line 3'),
        ("{‘loss’: 2.0}", "{'loss': 2.0}"),
        ("NCCL\u00a0WARN\u3000x\u200b", "NCCL WARN x"),
        ("File &quot;a.py&quot;, line 3, in &lt;module&gt;", 'File "a.py", line 3, in <module>'),
        ("KeyError: &#39;a&amp;lt;b&#39;", "KeyError: 'a&lt;b'"),  # once
        ("[rank1]: it&#x27;s", "it's"),
        ("GET /x?a=1&lt=2&copy;", "GET /x?a=1&lt=2&copy;"),
        ("训练 ✓ 100%|██████████|", "训练 ✓ 100%|██████████|"),
    ],
)
def test_typographic_characters_and_entities_are_replaced(text: str, shown: str) -> None:
    assert read(text) == [shown]


def test_exception_in_a_string_is_split_into_lines() -> None:
    double = QUOTED.replace('"', '\\"')
    assert read("{'message': '" + QUOTED.replace("'", "\\'") + "'}") == TRACEBACK
    assert read('> {"detail": "' + double + '"}') == TRACEBACK
    record = '[rank1]: {"level": "ERROR", "exc_info": "' + double + '"}'
    assert read(record) == ['{"level": "ERROR", ', *TRACEBACK]
    assert read("{'message': '" + QUOTED.replace("'", "\\'")) == TRACEBACK  # cut off


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': 2.0, 'note': 'a\\nb'}",
        "{'message': 'two\\nlines, and no exception'}",
        '{"stderr": "Traceback (most recent call last):\\nValueError: of a model\'s answer"}',
        '{"messages": [{"role": "user", "message": "what is this?\\nValueError: x"}]}',
        "{'message': 'C:\\new\\ValueError: x'}",
    ],
)
def test_other_strings_are_unchanged(text: str) -> None:
    assert read(text) == [text]


def test_number_of_lines_of_a_string_is_bounded() -> None:
    assert len(exception_lines("{'message': 'ValueError: x" + "\\ny" * 10_000 + "'}")) == MAX_PIECES + 1
