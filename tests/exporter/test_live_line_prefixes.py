"""A prefix of all lines is learned during the run: the live reading equals the later reading of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.watching.readers import PrefixLearning, Readers
from stallwatch_rules.locale import rendered
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis

LEADS = (
    "train-pod-7f9c | ",
    "sft-7b-worker-0 > ",
    "[job 4711/train] ",
    "2026-05-11T08:00:00.123Z stdout: ",
    "k8s/ns-a/trainer-0: ",
    "(node03) ",
    "gpu07: ",
    "│ ",
    "job sft pod 3 | ",
    "[node-2/rank-3] ",
)
DEATH = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 12, in <module>',
    "    optimizer.load_state_dict(state)",
    "KeyError: 'param_groups'",
]


def of_a_run(steps: int) -> list[str]:
    return ["loading the model", *(f"{{'loss': 2.5, 'step': {at}}}" for at in range(1, steps)), *DEATH]


def outcome(found: Diagnosis) -> tuple[Any, ...]:
    primary = found.primary
    return (
        found.verdict,
        (primary.rule, primary.rank, primary.step, primary.evidence) if primary else None,
        [(item.exception, item.message, item.count) for item in found.unknown],
        found.progress.last_step,
        found.progress.last_loss,
    )


@pytest.mark.parametrize("steps", [12, 400])
@pytest.mark.parametrize("lead", LEADS)
def test_live_diagnosis_equals_the_later_diagnosis(
    run: Any, catalogue: Catalogue, tmp_path: Path, lead: str, steps: int
) -> None:
    lines = [lead + line for line in of_a_run(steps)]
    for at, line in enumerate(lines):
        run.say(line)
        if at % 20 == 0:
            run.wait(1)
    live = run.end("failed", 1)
    path = tmp_path / "train.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    dead, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert outcome(live) == outcome(dead)
    assert live.primary is not None and live.primary.rule == "resume-checkpoint-failed"


RAYLET = "(raylet) [2026-05-11 08:00:{:02},219 E 2097714 2097744] file_system_monitor.cc:116: /tmp is full"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([RAYLET.format(at) for at in range(10)], [f"{{'loss': 2.5, 'step': {at}}}" for at in range(1, 60)]),
        (
            [f"(actor) step {at} loss 2.5" for at in range(1, 12)],
            [f"(critic) step {at} loss 9.5" for at in range(12, 60)],
        ),
    ],
)
def test_prefix_of_only_the_first_lines_is_rejected(
    run: Any, catalogue: Catalogue, tmp_path: Path, first: list[str], then: list[str]
) -> None:
    for line in (*first, *then):
        run.say(line)
    (reader,) = run.agent._readers._readers.values()
    live = run.end("finished", 0)
    path = tmp_path / "train.log"
    path.write_text("".join(f"{line}\n" for line in (*first, *then)))
    dead, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert reader.lead is None and outcome(live)[1:] == outcome(dead)[1:]


def test_memory_for_undecided_prefixes_is_bounded() -> None:
    readers = Readers()
    readers.lines("a.log", b"step 1 loss 2.5\n" * 300, 1.0, None)
    readers.lines("b.log", b"x" * 100_000, 1.0, None)
    assert not readers._learning and readers._held == 0
    for number in range(100):
        readers.lines(f"{number}.log", b"x" * 50_000, 1.0, None)
    assert 0 < readers._held == sum(value.held for value in readers._learning.values()) <= 4 * 1024 * 1024
    assert "99.log" in readers._learning and "0.log" not in readers._learning


def test_prefix_is_decided_once() -> None:
    learning = PrefixLearning()
    asked = [learning.take(b"starting\nstep 1 loss 2.5\n" * 8) for _ in range(40)]
    assert asked == [None] * 40 and not learning._head and not learning._tries
    assert learning.take(b"pod-1 | Traceback (most recent call last):\n" * 500) is None
    endless = PrefixLearning()
    assert endless.take(b"x" * 1_000_000) is None and not endless._head and not endless._tries


def test_truncated_log_keeps_its_prefix() -> None:
    readers = Readers()
    text = "".join(f"gpu07: {line}\n" for line in of_a_run(20)).encode()
    assert readers.lines("a.log", text, 1.0, None)[-1].text == DEATH[-1]
    again = readers.lines("a.log", b"gpu07: step 1 loss 2.5\nplain\n", 2.0, None, fresh=True)
    assert [line.text for line in again] == ["step 1 loss 2.5", "plain"]
