"""The live benchmark: its scorer on recorded events and messages, and some minutes of real runs."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from live_programs.table import FORMS, PROGRAMS, Expected, Program
from live_scoring import CAUSES, LIMITS, Message, Observed, Score, score
from live_tables import counted, tables

ROOT = Path(__file__).resolve().parents[2]
STARTED, EVENT = 1_790_000_000.0, 1_790_000_100.0
HEALTHY = Program("healthy", "plain", "plain.py", "steady", 60)
HANG = Program("hang", "ddp", "ddp.py", "hang", 60, expected=Expected("collapse", "own-code", 1))
CRASH = Program("crash", "ddp", "ddp.py", "crash", 60, expected=Expected("forward", "oom", limit="crash"))
#: Healthy and failing programs of the development set that take a minute if they run at once.
SHORT = ["lightning-early-stopping", "spawned-steady", "plain-endless-loop", "ddp-rank-1-hangs"]
SAID = "Rank 0 waits in all_reduce; rank 1 is in collapse (train.py:79)."


def message(after: float, text: str = SAID, **body: Any) -> Message:
    """Return a message that arrives `after` seconds after the event."""
    about = {"title": "[bench] rank 1 holds up the run", "severity": "critical", "status": "open"}
    return Message(EVENT + after, {**about, "text": text, **body})


def seen(*messages: Message, **changes: Any) -> Observed:
    about: dict[str, Any] = {"verdict": "stalled", "state": "interrupted"}
    return Observed(STARTED, EVENT, messages, **{**about, **changes})


def healthy(*messages: Message, verdict: str = "healthy", state: str = "finished") -> Score:
    return score(HEALTHY, Observed(STARTED, None, messages, verdict, state))


def test_hang_reported_in_time_is_right() -> None:
    judged = score(HANG, seen(message(31.0)))
    assert (judged.outcome, judged.seconds) == ("right", 31.0)


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        (message(31.0, title="[bench] stalled"), "rank"),
        (message(31.0, "Rank 1 is elsewhere."), "place"),
        (message(31.0, "collapse", title="rank 1"), "cause (own-code)"),
        (message(31.0, severity="warning"), "severity critical"),
    ],
)
def test_message_without_a_required_fact_is_wrong(said: Message, lacks: str) -> None:
    judged = score(HANG, seen(said))
    assert judged.outcome == "wrong"
    assert judged.why.startswith(f"no {lacks}")


def test_facts_in_the_second_message_come_too_late() -> None:
    judged = score(HANG, seen(message(31.0, "No step."), message(32.0)))
    assert judged.outcome == "wrong"
    assert "in the first message" in judged.why
    assert judged.wordy


def test_message_after_the_limit_is_late_and_no_message_is_a_miss() -> None:
    assert score(HANG, seen(message(36.0))).outcome == "late"
    assert score(HANG, seen()).outcome == "missed"


def test_message_caused_by_ctrl_c_is_not_a_detection() -> None:
    assert score(HANG, seen(message(100.0), stopped=EVENT + 99)).outcome == "missed"


def test_published_threshold_extends_the_limit_up_to_a_bound() -> None:
    assert score(HANG, seen(message(50.0), threshold=46.0)).outcome == "right"
    assert score(HANG, seen(message(1000.0), threshold=1800.0)).outcome == "late"


def test_alarm_before_the_event_is_false() -> None:
    assert score(HANG, seen(message(-5.0), message(31.0))).outcome == "false"


def test_program_without_its_event_is_invalid() -> None:
    assert score(HANG, Observed(STARTED, None, [], "healthy", "finished")).outcome == "invalid"


def test_crash_requires_one_message_and_a_failed_verdict() -> None:
    out = message(1.0, "CUDA out of memory in forward", status="resolved")
    assert score(CRASH, seen(out, verdict="failed", state="failed")).outcome == "right"
    assert score(CRASH, seen(out, verdict="healthy", state="finished")).outcome == "wrong"
    assert score(CRASH, seen(out, out, verdict="failed", state="failed")).outcome == "wrong"


def test_healthy_program_without_alarm_is_right() -> None:
    assert healthy().outcome == "right"
    assert healthy(message(0, severity="info")).outcome == "right"


def test_alarm_on_a_healthy_program_is_false() -> None:
    assert healthy(message(0, severity="warning")).outcome == "false"


def test_wrong_verdict_on_a_healthy_program_is_false() -> None:
    assert healthy(verdict="degraded").outcome == "false"
    assert healthy(state="failed").outcome == "false"


def test_recovery_must_be_reported() -> None:
    program = Program(
        "hang", "x", "x.py", "x", 60, expected=Expected("collapse", "own-code", 1, recovers=True)
    )
    assert score(program, seen(message(31.0))).outcome == "wrong"
    assert score(program, seen(message(31.0), message(60.0, status="resolved"))).outcome == "right"


def test_repetition_replaces_the_first_result() -> None:
    rows = [
        {"name": "a", "seed": 1, "alone": False, "outcome": "false"},
        {"name": "a", "seed": 1, "alone": True, "outcome": "right"},
    ]
    assert [row["outcome"] for row in counted(rows)] == ["right"]


def test_table_has_a_line_for_each_family() -> None:
    row = {
        "name": "a",
        "seed": 1,
        "alone": False,
        "outcome": "right",
        "why": "",
        "healthy": False,
        "seconds": 31.0,
    }
    shown = tables(
        [{**row, "family": "ddp", "frozen": False}, {**row, "name": "b", "family": "zero", "frozen": True}]
    )
    assert [line.split()[0] for line in shown.splitlines() if re.match(r"  \w", line)] == [
        "ddp",
        "all",
        "zero",
        "all",
    ]


def test_sums_exclude_skipped_programs() -> None:
    row = {"seed": 1, "alone": False, "why": "", "family": "ddp", "frozen": False}
    outcomes = [("a", True, "false"), ("b", True, "right"), ("c", True, "skipped"), ("d", False, "right")]
    rows = [
        {**row, "name": name, "healthy": healthy, "outcome": outcome} for name, healthy, outcome in outcomes
    ]
    assert tables(rows).splitlines()[-2:] == [
        "1 of 2 healthy runs caused a false alarm",
        "1 of 1 failing runs were reported correctly (100%)",
    ]


def test_listed_programs_exist() -> None:
    folder = ROOT / "bench" / "live_programs"
    for program in PROGRAMS:
        assert program.form in FORMS
        scenario = f"def {program.scenario}(" if program.scenario else ""
        assert scenario in (folder / program.file).read_text(), program.name
        if program.expected is not None:
            assert program.expected.cause in CAUSES
            assert program.expected.limit in LIMITS


def test_program_names_are_unique() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)


def test_short_selection_has_both_kinds_and_no_frozen_program() -> None:
    chosen = [program for program in PROGRAMS if program.name in SHORT]
    assert len(chosen) == len(SHORT)
    assert {program.healthy for program in chosen} == {True, False}
    assert not any(program.frozen for program in chosen)


@pytest.mark.repro
@pytest.mark.timeout(1200)  # other tests may delay the start of the programs
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_short_programs_under_the_real_stallwatch(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    bench = [sys.executable, str(ROOT / "bench" / "live.py"), "--only", *SHORT, "--seeds", "1", "--load", "4"]
    subprocess.run([*bench, "--resume", str(results)], check=True, timeout=1100)
    rows = counted(json.loads(line) for line in results.read_text().splitlines())
    assert {row["name"]: row["outcome"] for row in rows} == dict.fromkeys(SHORT, "right"), rows
