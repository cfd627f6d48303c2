"""The agent at a printed error: it is reported during the run, and resolved if training continues."""

from __future__ import annotations

from typing import Any

import pytest
from agentcases import OOM

from stallwatch_rules.locale import render

UNKNOWN = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 7, in <module>',
    "    main()",
    "ValueError: the tokenizer has no chat template",
]


def test_fatal_cause_is_reported_while_the_launcher_waits(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    assert run.sent == []
    run.wait(2)
    (finding,) = run.sent
    assert (finding.kind, finding.rule, finding.rank, finding.severity) == (
        "finding",
        "cuda-oom",
        3,
        "critical",
    )
    assert "CUDA out of memory" in finding.evidence[0]
    assert finding.primary is not None and finding.primary.fixes
    run.say(*OOM)
    run.wait(10)
    diagnosis = run.end()
    assert run.changes == [
        ("finding/cuda-oom/1", "open", ""),
        ("finding/cuda-oom/1", "resolved", "run-failed"),
    ]
    assert run.sent[-1].outcome == "crashed"
    assert diagnosis.verdict == "failed" and run.sent[-1].ending is not None


def test_error_is_withdrawn_if_training_continues(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.steps(11, 60)
    assert run.changes == [
        ("finding/cuda-oom/1", "open", ""),
        ("finding/cuda-oom/1", "resolved", "recovered"),
    ]


def test_wrappers_and_notices_open_no_incident(run: Any) -> None:
    run.steps(1, 10)
    run.say("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "WARNING: something")
    run.steps(11, 20)
    assert run.sent == []
    assert run.metric("stallwatch_warnings_total") == 1


def test_unknown_exception_at_the_end_is_reported(run: Any) -> None:
    """The end of a followed run, for example, is not visible."""
    run.steps(1, 3)
    run.say(*UNKNOWN)
    run.wait(29)
    assert run.sent == []
    run.wait(2)
    (finding,) = run.sent
    assert (finding.kind, finding.rule, finding.severity) == ("finding", "unknown-failure", "critical")
    assert finding.evidence[-1] == "ValueError: the tokenizer has no chat template"
    assert "First look at `/w/train.py:7 in <module>`" in render(finding.next_steps[0])
    run.wait(100)
    assert len(run.changes) == 1
    run.end("unknown", None)
    assert len(run.changes) == 1


def test_unknown_exception_is_reported_and_withdrawn_by_its_location(run: Any) -> None:
    place = '  File "/env/site-packages/torch/amp/grad_scaler.py", line 7, in _unscale_grads_'
    run.steps(1, 3)
    run.say("Traceback (most recent call last):", place, "ValueError: odd gradients")
    run.wait(31)
    (finding,) = run.sent
    assert (finding.rule, finding.severity, finding.primary.inferred) == (
        "fp16-unscale-error",
        "critical",
        "place",
    )
    assert finding.evidence[0] == "ValueError: odd gradients" and "_unscale_grads_" in render(finding.note)
    run.steps(4, 60)
    assert run.changes[-1] == ("finding/fp16-unscale-error/1", "resolved", "recovered")


def test_later_inference_does_not_open_a_second_incident(run: Any) -> None:
    place = '  File "/env/site-packages/torch/amp/grad_scaler.py", line 7, in _unscale_grads_'
    run.steps(1, 3)
    run.say(*UNKNOWN)
    run.wait(31)
    assert (run.sent[-1].rule, run.sent[-1].primary) == ("unknown-failure", None)
    run.steps(4, 5)
    lines = ("Traceback (most recent call last):", place, "ValueError: odd gradients")
    run.say(*(f"[rank1]: {line}" for line in lines))
    run.wait(100)
    assert run.changes == [("finding/unknown-failure/1", "open", "")], "and it is not over"
    assert run.sent[-1].primary.rule == "fp16-unscale-error" and run.sent[-1].rank == 1
    run.end()
    assert {change[0] for change in run.changes} == {"finding/unknown-failure/1"}
    assert run.sent[-1].ending is not None


def test_inferred_cause_names_its_rank(run: Any) -> None:
    place = '  File "/env/site-packages/torch/amp/grad_scaler.py", line 7, in _unscale_grads_'
    run.steps(1, 3)
    for rank in (2, 5):
        found = ("Traceback (most recent call last):", place, "ValueError: odd gradients")
        run.say(*(f"[rank{rank}]: {line}" for line in found))
    run.wait(31)
    (finding,) = run.sent
    assert (finding.rule, finding.rank, finding.count) == ("fp16-unscale-error", 2, 2)
    run.say(*(f"[rank7]: {line}" for line in UNKNOWN))
    run.wait(100)
    assert [each.rule for each in run.sent] == ["fp16-unscale-error"] * len(run.sent)


def test_unknown_exception_is_not_reported_if_training_continues(run: Any) -> None:
    run.steps(1, 3)
    run.say(*UNKNOWN)
    run.steps(4, 60)
    run.wait(25)
    assert [each.rule for each in run.sent] == []


def test_unknown_exception_is_withdrawn_when_training_continues(run: Any) -> None:
    run.steps(1, 3)
    run.say(*UNKNOWN)
    run.wait(31)
    run.steps(4, 60)
    assert run.changes == [
        ("finding/unknown-failure/1", "open", ""),
        ("finding/unknown-failure/1", "resolved", "recovered"),
    ]


def test_unknown_exception_in_the_history_is_not_reported(run: Any) -> None:
    run.agent.history(
        "stdout", "".join(f"{line}\n" for line in ["step 1/9 loss 1", *UNKNOWN]).encode(), None, counted=True
    )
    run.agent.history_ends(run.now)
    run.wait(10)
    run.say("a word")
    run.wait(60)
    assert run.sent == []


@pytest.mark.parametrize(("lines", "rule"), [(OOM, "cuda-oom"), (UNKNOWN, "unknown-failure")])
def test_waiting_notifications_are_sent_when_watching_stops(run: Any, lines: list[str], rule: str) -> None:
    run.steps(1, 3)
    run.say(*lines)
    run.end("unknown", None)
    assert run.changes == [(f"finding/{rule}/1", "open", "")]


def test_caught_and_logged_exception_is_not_an_incident(probed: tuple[Any, list[Any]]) -> None:
    """The traceback below the dated line has no date, so its time of arrival counts."""
    run, probes = probed
    run.train(probes, 20, 0.5)
    run.say("2026-09-21 14:54:47,668 [ERROR] could not read sample 33, taking another one")
    run.say("Traceback (most recent call last):", '  File "/w/train.py", line 8, in <module>')
    run.say("torch.OutOfMemoryError: CUDA out of memory while decoding")
    run.train(probes, 6, 0.3)
    run.wait(5)
    assert run.sent == []
