"""Prefixes that viewers and collectors add to each line are learned from the text; a logger's is none."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.line_prefix import certain_prefix, likely_prefixes, rank_in, time_in
from stallwatch_rules.lines.reader import LineReader

RUN = """{'loss': 2.5, 'epoch': 0.1}
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: no
"""
LOGGED = """[2026-11-20 10:00:01,123] [INFO] [engine.py:12:step] rank 0 is ready
[2026-11-20 10:00:02,123] [INFO] [engine.py:12:step] step 10
[2026-11-20 10:00:03,456] [WARNING] [engine.py:99:step] step 11
"""


def behind(leads: list[str], text: str = RUN) -> bytes:
    lines = text.splitlines()
    return "".join(f"{leads[at % len(leads)]}{line}\n" for at, line in enumerate(lines)).encode()


def texts(data: bytes) -> list[str]:
    reader = LineReader("", lead=certain_prefix(data))
    return [line.text for line in [*reader.feed(data), *reader.finish()]]


@pytest.mark.parametrize(
    "leads",
    [
        ["gpu07: "],
        ["llm-train-worker-0 pytorch "],
        ["trainer  | "],
        ["[gpu07] "],
        ["[rank3] "],
        ["[node-2/rank-3] "],
        ["2026-11-20 10:00:01.5 ", "2026-11-20 10:00:12.25 "],
        ["train\tRun training\t2026-11-20T10:00:01.1234567Z "],
        ["     9\t", "    10\t"],
        ["> "],
    ],
)
def test_prefix_before_a_traceback_is_learned(leads: list[str]) -> None:
    assert texts(behind(leads)) == RUN.splitlines()


def test_quoted_table_cell_is_unquoted() -> None:
    lines = RUN.replace('"', '""').splitlines()
    data = "".join(f'2026-11-20T10:00:01Z,"{line}"\n' for line in lines).encode()
    assert [text.strip() for text in texts(data)] == [line.strip() for line in RUN.splitlines()]


def test_prefix_provides_rank_and_time() -> None:
    data = behind(["2026-11-20T10:00:01Z [node-2/rank-3] "])
    reader = LineReader("", lead=certain_prefix(data))
    lines = [*reader.feed(data), *reader.finish()]
    assert {(line.rank, line.time) for line in lines} == {(3, 1795168801.0)}
    assert (rank_in("pod-7 "), time_in("[10:00:01] ")) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        LOGGED,
        RUN,
        "step 1 loss 2.5\nstep 2 loss 2.4\n",
        "{'loss': 2.5}\n{'loss': 2.4}\n",
        '  File "a.py", line 3\n  File "b.py", line 4\n',
        "INFO 11-20 10:00:00 [core.py:3] up\nINFO 11-20 10:00:01 [core.py:4] down\n",
        "ip-10-0-3-17:12:13 [0] NCCL INFO a\nip-10-0-3-17:12:13 [0] NCCL INFO b\n",
        "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n",
        "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***\n"
        "slurmstepd: error: *** JOB 18 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\n",
        "one line\n",
        "",
    ],
)
def test_program_output_is_not_a_prefix(text: str) -> None:
    assert certain_prefix(text.encode()) is None


def test_counter_is_not_a_prefix() -> None:
    leads = likely_prefixes(b"step 100 | lr 0.1 | ok\nstep 200 | lr 0.1 | ok\n")
    assert [lead.take("step 100 | lr")[1] for lead in leads] == []


@pytest.mark.parametrize(
    "name", ["Evaluating: ", "Generating: ", "Tokenizing train dataset: ", "Running requests: ", "Map: "]
)
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_name_of_a_bar_is_not_a_prefix(name: str, end: str) -> None:
    states = (f"{name}{at}%|███▍      | {at}/100 [00:10<00:20,  2.00it/s]{end}" for at in range(30, 60))
    bars = "".join(states).encode()
    assert certain_prefix(bars) is None
    assert certain_prefix(b"starting\n" + bars + b"\n") is None


@pytest.mark.parametrize("phase", ["validation ", "validation: ", "[eval] ", "Loading shards: ", "note-3: "])
def test_name_of_a_phase_is_not_a_prefix(phase: str) -> None:
    assert likely_prefixes(behind([phase])) == []
    found = likely_prefixes(behind([f"[gpu07] {phase}"], "one thing\nanother\n"))
    assert [lead.take("[gpu07] x") for lead in found] == [("[gpu07] ", "x")]


def test_single_line_has_no_prefix() -> None:
    assert likely_prefixes(b"%s. x\n%s. y\n" % (b"1" * 5000, b"2" * 5000)) == []
    assert likely_prefixes(b"gpu07: Killed by somebody\n") == []
