"""Source code in a log contains messages that were not printed: no rule fires on it."""

from __future__ import annotations

import pytest
from packaged import CATALOGUE

from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.reading import RunReading

MATCHER = Matcher(CATALOGUE)


def fired(text: str) -> list[str]:
    reading = RunReading(CATALOGUE, MATCHER)
    reading.feed(lines_of(text))
    return [finding.rule for finding in rendered(reading.diagnose()).findings]


RAISE = 'raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")'
SHOWN = {
    "frame": f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    {RAISE}\nMyError: no\n',
    "two lines": 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise RuntimeError(\n'
    '        "CUDA out of memory. Tried to allocate 2.00 GiB"\n    )\nMyError: no\n',
    "folded": 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise RuntimeError(\n'
    '    ...<5 lines>...\n        "CUDA out of memory. Tried to allocate 2.00 GiB"\n    )\nMyError: no\n',
    "no header": f'  File "a.py", line 3, in f\n    {RAISE}\n    ~~~~~~^^^^^^^\nMyError: no\n',
    "flush": f'Traceback (most recent call last):\nFile "a.py", line 3, in f\n{RAISE}\nMyError: no\n',
    "prefixed": f"ERROR 10-25 13:08:43 Traceback (most recent call last):\n"
    f'ERROR 10-25 13:08:43   File "a.py", line 3, in f\nERROR 10-25 13:08:43     {RAISE}\n',
    "box": "╭──── Traceback (most recent call last) ────╮\n│ /home/ada/a.py:41 in main  │\n"
    f"│ ❱ 41 │   {RAISE} │\n│ ╭── locals ──╮ │\n│ │ e = E('CUDA out of memory. Tried to allocate 2') │ │"
    "\n╰───╯\nTypeError: no\n",
    "dumped file": f"import torch\n\ndef f():\n    {RAISE}\n",
    "notebook": f"----> 7     {RAISE}\n",
    "group": "  + Exception Group Traceback (most recent call last):\n"
    "  | ExceptionGroup: many (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
    f'    | Traceback (most recent call last):\n    |   File "a.py", line 2, in f\n    |     {RAISE}\n'
    "    | ValueError: no\n    +------------------------------------\n",
    "another writer between": 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
    f"wandb: syncing\n    {RAISE}\nMyError: no\n",
}


@pytest.mark.parametrize("name", SHOWN)
def test_quoted_source_code_fires_no_rule(name: str) -> None:
    assert fired(SHOWN[name]) == []


def test_message_near_source_code_fires() -> None:
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"
    )
    assert fired(SHOWN["frame"].replace("MyError: no", message)) == ["cuda-oom"]
    group = SHOWN["group"].replace("| ValueError: no", "| " + message)
    assert fired(group) == ["cuda-oom"]


def test_message_in_an_interleaved_traceback_fires() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    run()\nwandb: syncing\n'
    message = "  OSError: [Errno 28] No space left on device: 'checkpoint-100/optimizer.pt'\n"
    assert fired(text + message) == ["disk-full-checkpoint"]


@pytest.mark.parametrize("header", ["", "            Traceback (most recent call last):\n"])
def test_indented_message_fires(header: str) -> None:
    frame = '            File "a.py", line 3, in f\n                run()\n'
    message = "            OSError: [Errno 28] No space left on device: 'checkpoint-100/optimizer.pt'\n"
    assert fired(header + frame + message) == ["disk-full-checkpoint"]


BARE = "assert not param.ds_active_sub_modules, param.ds_summary()"
STATEMENTS = {
    "frame": f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    {BARE}\nAssertionError\n',
    "box": "╭──── Traceback (most recent call last) ────╮\n│ /home/ada/a.py:41 in main  │\n"
    f"│ ❱ 41 │   {BARE} │\n╰───╯\nAssertionError\n",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_failed_statement_counts_without_a_message(name: str) -> None:
    assert fired(STATEMENTS[name]) == ["zero3-active-sub-modules-assert"]


def test_lines_around_the_failed_statement_do_not_count() -> None:
    assert fired(STATEMENTS["box"].replace("❱", " ")) == []


@pytest.mark.parametrize("rule", [page.id for page in CATALOGUE.pages.values() if page.patterns])
def test_pages_match_without_quoted_source(rule: str) -> None:
    for sample in CATALOGUE.pages[rule].fires:
        assert rule in fired(sample), sample
