"""Data of a run's output that the agent stores and publishes: metrics, versions, copies, and no secrets."""

from __future__ import annotations

from typing import Any

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.runs.copies import parse_record
from stallwatch_rules.locale import rendered
from stallwatch_rules.pages.catalogue import Catalogue


def test_progress_bars_and_ranks_are_recognized(run: Any) -> None:
    for step in range(1, 12):
        run.wait(2)
        bar = f"\r{step * 2:3d}%|##   | {step}/50 [00:{step * 2:02d}<01:00,  2.00s/it]"
        run.agent.feed(Chunk("stderr", bar.encode(), run.now))
        run.say(f"[rank1]: {{'loss': '{1 / step:.3f}', 'grad_norm': 'nan', 'learning_rate': '1e-05'}}")
    run.wait(1)
    assert run.metric("stallwatch_step") == 11  # no carriage return followed the last state
    assert run.metric("stallwatch_target_steps") == 50
    assert run.metric("stallwatch_loss{rank=1}") == 0.091
    assert run.metric("stallwatch_learning_rate{rank=1}") == 1e-05
    assert str(run.metric("stallwatch_grad_norm{rank=1}")) == "nan"
    assert run.metric("stallwatch_last_step_timestamp_seconds") is not None
    assert run.metric("stallwatch_step_duration_seconds_count") == 10
    assert run.metric("stallwatch_step_duration_seconds_sum") == pytest.approx(20.0)
    assert run.kept("agent.json")["rank_logs"] == ["output.log", "ranks/rank1.log"]


def test_agent_json_is_written_on_changes_and_every_five_seconds(run: Any) -> None:
    run.wait(10)  # the run is starting
    written = set()
    for _ in range(20):
        run.wait(1)
        written.add(run.kept("agent.json")["updated_at"])
    assert 4 <= len(written) <= 5
    run.say("step 1/1000 loss 0.5")
    run.wait(1)
    known = run.kept("agent.json")
    assert (known["state"], known["updated_at"]) == ("training", run.now)
    assert (known["step"], known["total_steps"], known["loss"]) == (1, 1000, 0.5)


def test_log_copies_contain_the_output(run: Any) -> None:
    run.say("hello", "[rank1]: one")
    run.end("finished", 0)
    records = [parse_record(line) for line in (run.folder.path / "ranks/rank1.log").read_bytes().splitlines()]
    assert [record.text for record in records if record] == [b"[rank1]: one"]


def test_secrets_reach_neither_disk_nor_sinks(run: Any) -> None:
    token = "hf_" + "A1b2" * 9
    run.steps(1, 10)
    run.say(f"logging in with {token}")
    run.say(
        "Traceback (most recent call last):", '  File "/w/t.py", line 1', f"ValueError: bad token {token}"
    )
    run.end()
    assert run.sent and token not in repr(run.sent)
    for path in run.folder.path.rglob("*"):
        assert path.is_dir() or token not in path.read_text()


def test_versions_in_the_log_become_labels(run: Any) -> None:
    run.say("versions torch=2.6.0 deepspeed=0.16.4 flash-attn=2.7.0")
    run.steps(1, 10)
    run.wait(10)
    labels = None
    for family in run.agent.metrics.registry.collect():
        if family.name == "stallwatch_run":
            labels = family.samples[0].labels
    assert labels is not None
    assert (labels["torch"], labels["deepspeed"], labels["flash_attn"]) == ("2.6.0", "0.16.4", "2.7.0")


_RAISED = [
    '  File "train.py", line 9, in <module>',
    "    step()",
    "ValueError: batch 24 has no reward",
]
HEAD = ["starting my program", "found 812 shards", "the model is ready", "the rate is 0.1 now"]


def test_folder_of_a_restarted_run_has_the_live_verdict(run: Any, catalogue: Catalogue) -> None:
    for error in (["Traceback (most recent call last):", *_RAISED], []):
        run.say(*HEAD)
        run.steps(1, 40, total=40)
        run.say(*error, stream="stderr")
    live = run.end("finished", 0)
    found, _ = diagnose_paths([run.folder.path], Options(catalogue))
    assert (found.verdict, found.starts) == (live.verdict, live.starts)
    assert found.starts == [] and found.progress == live.progress


def test_run_stopped_during_a_wait_is_not_a_stall_in_its_folder(run: Any, catalogue: Catalogue) -> None:
    """`diagnose` of the run's folder is as patient as the live agent."""
    run.steps(1, 40)
    run.agent._watch.rule(180.0, "waiting")
    run.wait(60)
    live = run.end("interrupted", 130)
    found, _ = rendered(diagnose_paths([run.folder.path], Options(catalogue)))
    assert (found.verdict, live.verdict) == ("interrupted", "interrupted")
