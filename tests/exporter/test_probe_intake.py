"""Events from ranks become findings and incidents without a line in the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.hooks.reports import warn
from stallwatch_exporter.rings.probing import Probing
from stallwatch_rules.locale import render

SAVES = "zero3-save-unwrapped-model"
EVAL = "zero3-backward-in-eval-mode"
CACHE = "zero3-trace-cache-invalidated"


def warn_of_saving(probes: list[Probe]) -> None:
    for probe in probes:
        probe.announce()
        warn(
            probe,
            SAVES,
            "unwrapped-at-checkpoint",
            "PPOTrainer",
            trainer="PPOTrainer",
            place="trl/trainer/ppo_trainer.py:332",
            saves="step 500",
        )


def finding(diagnosis: Any, rule: str) -> Any:
    return next((finding for finding in diagnosis.findings if finding.rule == rule), None)


def test_warning_of_a_rank_is_an_incident(probed: Any) -> None:
    run, probes = probed
    warn_of_saving(probes)
    run.wait(3)
    (incident,) = run.sent
    assert (incident.id, incident.severity, incident.harm) == (
        f"sft/finding/{SAVES}/1",
        "warning",
        "degrading",
    )
    assert "trl/trainer/ppo_trainer.py:332" in incident.evidence[0]
    assert render(incident.note) == "The run fails at the first checkpoint (save strategy: step 500)."
    assert incident.primary is not None and incident.primary.fixes
    assert incident.primary.file == "events.jsonl"
    assert run.metric(f"stallwatch_rule_matches_total{{rule={SAVES}}}") == 2
    run.train(probes, 30)
    assert len(run.changes) == 1  # neither repeated nor resolved, although the steps continue
    diagnosis = run.end("finished", 0)
    assert finding(diagnosis, SAVES).harm == "harmless"
    assert diagnosis.verdict == "finished"
    assert run.changes[-1][1:] == ("resolved", "run-finished")


def test_warning_has_the_step_of_its_rank(probed: Any) -> None:
    run, probes = probed
    probes[0].announce()
    run.say("step 31/60 loss 0.5", "step 41/60 loss 0.4")
    probes[0].steps = 45.0
    warn(probes[0], EVAL, "eval-silent", "m", module="m (Linear)", others=0, place="t.py:9 in main")
    run.wait(3)
    assert [(item.rule, item.step) for item in run.sent] == [(EVAL, 45)]


def test_failure_after_a_warning_is_reported_from_the_log(probed: Any) -> None:
    run, probes = probed
    warn_of_saving(probes)
    run.train(probes, 5)
    error = "'LlamaForCausalLM' object has no attribute 'zero_gather_16bit_weights_on_model_save'"
    run.say(
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "train.py", line 9, in <module>',
        f"[rank0]: AttributeError: {error}",
    )
    run.wait(2)
    diagnosis = run.end()
    assert diagnosis.verdict == "failed"
    assert (diagnosis.primary.rule, diagnosis.primary.harm, diagnosis.primary.file) == (
        SAVES,
        "fatal",
        "stdout",
    )
    assert finding(diagnosis, SAVES).count == 1
    said, raised_at, warned_of = diagnosis.primary.evidence
    assert error in said and "train.py:9" in raised_at
    assert error not in warned_of and "ppo_trainer.py:332" in warned_of
    assert run.sent[-1].severity == "critical"


def test_warning_is_described_in_the_configured_language(watch: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "rings").mkdir()
    run = watch(language="zh")
    run.agent._probing = Probing(tmp_path / "rings")
    warn_of_saving([Probe(tmp_path / "rings", {"RANK": "0"}, lambda: run.now)])
    run.wait(3)
    assert render(run.sent[0].note, "zh").startswith("训练会在保存第一个 checkpoint 时失败")


def test_unknown_warnings_are_ignored(probed: Any) -> None:
    run, probes = probed
    probes[0].announce()
    warn(probes[0], "no-such-rule", "sum", "x", parameter="x", place="y")
    warn(probes[0], SAVES, "of-a-later-version", "x")
    probes[0].event("concern", rule=["a", "list"], seen=3)
    run.wait(5)
    assert run.sent == [] and run.agent.errors == 0


def raise_unseen(probe: Probe, message: str = "CUDA out of memory. Tried to allocate 2.00 GiB.") -> None:
    probe.event(
        "exception",
        exception="torch.OutOfMemoryError",
        message=message,
        frames=["/w/train.py:12 <module>", "/env/site-packages/torch/nn/modules/linear.py:125 forward"],
    )


def test_exception_missing_in_the_log_is_diagnosed(probed: Any) -> None:
    run, probes = probed
    run.train(probes, 5)
    raise_unseen(probes[1])
    run.wait(12)
    assert [(item.rule, item.severity) for item in run.sent] == [("cuda-oom", "critical")]
    diagnosis = run.end()
    assert (diagnosis.verdict, diagnosis.primary.rule, diagnosis.primary.rank) == ("failed", "cuda-oom", 1)
    assert diagnosis.primary.file == "events.jsonl"


def test_exception_in_probe_and_log_counts_once(probed: Any) -> None:
    run, probes = probed
    run.train(probes, 5)
    raise_unseen(probes[1], "no such thing as 5 apples")
    run.wait(2)
    run.say(
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/w/train.py", line 12, in <module>',
        "[rank1]: torch.OutOfMemoryError: no such thing as 5 apples",
    )
    diagnosis = run.end()
    assert [(item.exception, item.count) for item in diagnosis.unknown] == [("torch.OutOfMemoryError", 1)]
    assert diagnosis.unknown[0].first.file == "stdout"


def test_unknown_exception_of_the_probe_has_frames(probed: Any) -> None:
    run, probes = probed
    raise_unseen(probes[0], "first line\nsecond line")
    diagnosis = run.end()
    (unknown,) = diagnosis.unknown
    assert (unknown.exception, unknown.ranks) == ("torch.OutOfMemoryError", [0])
    assert unknown.message.startswith("first line")
    assert unknown.frames[0] == "/w/train.py:12 in <module>"


def invalidate(probe: Probe, how: str = "mismatch", times: int = 3) -> None:
    for _ in range(times):
        probe.add(f"invalidations_{how}")
    names = {"got_name": "blocks.2 (Block)", "expected_name": "blocks.0 (Block)"}
    probe.event("trace-cache", "once", how=how, got=5, expected=3, **names)


def test_silent_invalidations_before_a_stall_are_its_cause(probed: Any) -> None:
    run, probes = probed
    for _ in range(20):
        for probe in probes:
            invalidate(probe)
        run.train(probes, 1)
    assert run.sent == []
    run.wait(40)
    (stall,) = run.sent
    assert (stall.id, stall.severity) == (f"sft/stall/{CACHE}/1", "critical")
    assert stall.evidence == ["trace cache invalidated: expected blocks.0 (Block), but got blocks.2 (Block)"]
    assert stall.count == 120 and stall.note
    assert run.metric("stallwatch_trace_cache_invalidations_total{rank=0}") == 60
    run.train(probes, 1)
    assert run.changes[-1][1:] == ("resolved", "recovered")


def test_invalidations_during_steps_are_harmless(probed: Any) -> None:
    run, probes = probed
    for _ in range(30):
        for probe in probes:
            invalidate(probe, times=1)
        run.train(probes, 1)
    diagnosis = run.end("finished", 0)
    assert run.sent == []
    assert finding(diagnosis, CACHE).harm == "harmless"
    assert diagnosis.verdict == "finished"


def test_intended_invalidations_are_not_finding(probed: Any) -> None:
    """A trainer that generates invalidates the trace outside of the forward pass."""
    run, probes = probed
    for _ in range(20):
        for probe in probes:
            invalidate(probe, "external")
        run.train(probes, 1)
    run.wait(40)
    assert [incident.rule for incident in run.sent] == ["silent-hang-no-error"]


def test_invalidations_in_probe_and_log_count_once(probed: Any) -> None:
    run, probes = probed
    for _ in range(20):
        invalidate(probes[0], times=1)
        run.say("Invalidate trace cache @ step 10: expected module 19, but got module 11")
        run.train(probes, 1)
    diagnosis = run.end("finished", 0)
    assert finding(diagnosis, CACHE).count == 20


def test_warnings_of_ranks_replace_those_of_the_log(probed: Any) -> None:
    run, probes = probed
    run.say("UserWarning: before any rank told of itself")
    run.wait(1)
    assert run.metric("stallwatch_warnings_total") == 1
    for probe in probes:
        probe.add("warnings", 0.0)
        probe.add("warnings", 2.0)
    run.train(probes, 1)
    run.say("UserWarning: one of those")
    run.wait(1)
    assert run.metric("stallwatch_warnings_total{rank=0}") == 2
    assert run.metric("stallwatch_warnings_total{rank=1}") == 2
    assert run.metric("stallwatch_warnings_total") == 1
