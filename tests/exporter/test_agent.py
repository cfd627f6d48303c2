"""The agent as a whole, with a clock of the tests' own: stalls, findings, endings, and staying alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stallwatch_exporter.runs.cri import parse_record
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.watching.agent import Agent

Make = Callable[..., Any]
OOM = [
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/w/train.py", line 12, in <module>',
    "[rank3]:     loss.backward()",
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total "
    "capacity of 79.11 GiB of which 1.02 GiB is free. Process 1 has 78.09 GiB memory in use.",
]
CACHE = "Invalidate trace cache @ step 10: expected module 19, but got module 11"
HANG = "stall/silent-hang-no-error"


def test_a_healthy_run_says_nothing(run: Any) -> None:
    run.steps(1, 50)
    run.say("Training completed.")
    run.wait(60)
    diagnosis = run.end("finished", 0)
    assert run.told == [] and run.notices == []
    assert diagnosis.verdict == "healthy"
    assert run.kept("agent.json")["state"] == "finished"
    assert run.kept("diagnosis.json")["verdict"] == "healthy"


def test_a_stall_is_raised_within_the_learnt_threshold_and_recovers(run: Any) -> None:
    run.steps(1, 10)
    run.wait(30)
    assert run.told == []
    run.wait(1)
    (stall,) = run.told
    assert (stall.id, stall.severity, stall.status) == ("sft/" + HANG + "/1", "critical", "open")
    assert (stall.step, stall.total_steps, stall.phase) == (10, 1000, "train")
    assert stall.threshold_seconds == 30.0 and stall.stalled_seconds == 31.0
    assert stall.last_loss == 0.2
    assert stall.primary is not None and stall.primary.fixes
    assert run.kept("agent.json")["state"] == "stalled"
    assert run.metric("stallwatch_incident_open{rule=silent-hang-no-error,severity=critical}") == 1

    run.wait(69)
    run.say("step 11/1000 loss 0.18")
    run.wait(1)
    assert run.changes == [(HANG + "/1", "open", ""), (HANG + "/1", "resolved", "recovered")]
    assert run.told[-1].stalled_seconds == 100.0
    assert run.told[-1].step == 11 and run.told[-1].last_loss == 0.18
    assert run.metric("stallwatch_incident_open{rule=silent-hang-no-error,severity=critical}") == 0
    assert run.metric("stallwatch_stalled_seconds_total") == pytest.approx(70, abs=1.5)
    assert run.kept("agent.json")["state"] == "training"


def test_a_second_stall_alerts_again(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    run.say("step 11/1000 loss 0.18")
    run.wait(60)
    assert len(run.changes) == 2  # as long as it came back from, and half as long again, it is no news
    run.wait(1)
    assert [change[0] for change in run.changes] == [HANG + "/1", HANG + "/1", HANG + "/2"]
    assert [incident.id for incident in run.kept_incidents if incident.status == "open"][-1].endswith("/2")


def test_two_stalls_between_two_looks_are_two(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    run.now += 0.1
    run.say("step 11/1000 loss 0.18")
    run.now += 61.0  # the agent had no time to look
    run.agent.tick(run.now)
    assert run.changes == [
        (HANG + "/1", "open", ""),
        (HANG + "/1", "resolved", "recovered"),
        (HANG + "/2", "open", ""),
    ]


def test_a_long_stall_is_updated_but_not_every_second(run: Any) -> None:
    run.steps(1, 10)
    run.wait(331)
    assert {incident.status for incident in run.told} == {"open"}
    assert 3 <= len(run.told) <= 8
    assert run.told[-1].stalled_seconds > 250


def test_invalidations_before_the_silence_are_named_as_its_cause(run: Any) -> None:
    for step in range(1, 21):
        run.steps(step, step)
        run.say(*[CACHE] * 3)
    assert run.told == []
    run.wait(32)
    assert run.changes == [("stall/zero3-trace-cache-invalidated/1", "open", "")]
    (stall,) = run.told
    assert stall.count == 60 and CACHE in stall.evidence[0] and stall.note
    run.wait(60)
    assert len(run.changes) == 1  # not told a second time as a finding
    run.say("step 21/1000 loss 0.1")
    run.wait(1)
    assert run.changes[1:] == [("stall/zero3-trace-cache-invalidated/1", "resolved", "recovered")]
    assert run.metric("stallwatch_trace_cache_invalidations_total") == 60


def test_invalidations_in_a_run_that_advances_raise_nothing(run: Any) -> None:
    for step in range(1, 60):
        run.say(CACHE)
        run.steps(step, step)
    assert run.told == []


def test_invalidations_that_slow_the_run_down_are_a_warning(run: Any) -> None:
    run.steps(1, 40, seconds=1.0)
    for step in range(41, 90):
        run.say(*[CACHE] * 4)
        run.steps(step, step, seconds=4.0)
    opened = [incident for incident in run.told if incident.status == "open"]
    assert [(one.rule, one.severity) for one in opened][:1] == [("zero3-trace-cache-invalidated", "warning")]
    assert [one.rule for one in opened if one.status == "open"].count("step-time-degraded") == 0
    run.end("finished", 0)
    assert {change[0] for change in run.changes} == {"finding/zero3-trace-cache-invalidated/1"}


def test_steps_that_become_slower_by_themselves_are_a_warning(run: Any) -> None:
    run.steps(1, 40, seconds=1.0)
    run.steps(41, 90, seconds=4.0)
    assert [(one.rule, one.severity) for one in run.told][:1] == [("step-time-degraded", "warning")]


def test_a_fatal_cause_is_raised_while_the_launcher_still_waits(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    assert run.told == []
    run.wait(2)
    (finding,) = run.told
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
        ("ended/cuda-oom/1", "open", ""),
    ]
    assert diagnosis.verdict == "failed" and run.told[-1].ending is not None


def test_a_run_that_dies_at_once_sends_one_message(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.now += 0.5
    run.end()
    assert run.changes == [("ended/cuda-oom/1", "open", "")]
    assert run.told[0].severity == "critical" and run.told[0].step == 10


def test_an_error_that_training_survives_is_taken_back(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.steps(11, 60)
    assert run.changes == [
        ("finding/cuda-oom/1", "open", ""),
        ("finding/cuda-oom/1", "resolved", "recovered"),
    ]


def test_wrappers_and_notices_raise_nothing_while_the_run_is_up(run: Any) -> None:
    run.steps(1, 10)
    run.say("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "WARNING: something")
    run.steps(11, 20)
    assert run.told == []
    assert run.metric("stallwatch_warnings_total") == 1


def test_an_unknown_failure_is_told_by_its_exception(run: Any) -> None:
    run.steps(1, 3)
    run.say(
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 7, in <module>',
        "    main()",
        "ValueError: the tokenizer has no chat template",
    )
    run.end()
    (ended,) = run.told
    assert ended.rule == "unknown-failure"
    assert ended.evidence[-1] == "ValueError: the tokenizer has no chat template"


def test_a_failure_without_a_word_shows_the_last_lines(run: Any) -> None:
    run.steps(1, 10)
    run.end("killed", 137)
    (ended,) = run.told
    assert ended.evidence[-1] == "step 10/1000 loss 0.2000"
    assert run.kept("agent.json")["ending"]["kind"] == "killed"


def test_a_stall_that_ends_in_a_kill_is_closed_with_its_whole_length(run: Any) -> None:
    run.steps(1, 10)
    run.wait(100)
    run.end("killed", 137)
    kinds = [
        (incident.kind, incident.status)
        for incident in run.told
        if incident.status != "open" or incident.kind == "ended"
    ]
    assert kinds == [("stall", "resolved"), ("ended", "open")]
    resolved = next(incident for incident in run.told if incident.status == "resolved")
    assert resolved.resolution == "run-failed" and resolved.stalled_seconds == 100.0


def test_a_stall_that_ctrl_c_ends_is_closed_as_stopped(run: Any) -> None:
    run.steps(1, 10)
    run.wait(100)
    run.end("interrupted", 130)
    assert run.told[-1].resolution == "run-stopped" and run.told[-1].stalled_seconds == 100.0
    assert not any(incident.kind == "ended" for incident in run.told)


@pytest.mark.parametrize("kind", ["interrupted", "finished"])
def test_ctrl_c_and_a_good_end_are_no_incidents(run: Any, kind: str) -> None:
    run.steps(1, 10)
    run.end(kind, 130 if kind == "interrupted" else 0)
    assert run.told == []


def test_a_watch_that_is_taken_away_leaves_incidents_open(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    run.end("unknown", None)
    assert {change[1] for change in run.changes} == {"open"}


def test_an_evaluation_longer_than_many_steps_is_no_stall(run: Any) -> None:
    run.steps(1, 20)
    run.say("***** Running Evaluation *****")
    run.wait(600)
    run.steps(21, 30)
    assert run.told == []
    assert run.metric("stallwatch_phase{stallwatch_phase=train}") == 1


def test_before_the_first_step_it_waits_long(run: Any) -> None:
    run.say("Loading checkpoint shards")
    run.wait(3599)
    assert run.told == []
    run.wait(2)
    assert run.changes == [(HANG + "/1", "open", "")]
    assert run.told[0].phase == "init" and run.told[0].step is None


def test_suspension_of_the_watcher_is_no_stall(run: Any) -> None:
    run.steps(1, 10)
    run.now += 5000.0
    run.agent.paused(5000.0)
    run.wait(20)
    assert run.told == []


def test_progress_bars_and_ranks_are_understood(run: Any) -> None:
    for step in range(1, 12):
        run.wait(2)
        run.agent.feed(
            "stderr",
            f"\r{step * 2:3d}%|##   | {step}/50 [00:{step * 2:02d}<01:00,  2.00s/it]".encode(),
            run.now,
        )
        run.say(f"[rank1]: {{'loss': '{1 / step:.3f}', 'grad_norm': 'nan', 'learning_rate': '1e-05'}}")
    run.wait(1)
    assert run.metric("stallwatch_step") == 11  # no carriage return came after the last state
    assert run.metric("stallwatch_target_steps") == 50
    assert run.metric("stallwatch_loss{rank=1}") == 0.091
    assert run.metric("stallwatch_learning_rate{rank=1}") == 1e-05
    assert str(run.metric("stallwatch_grad_norm{rank=1}")) == "nan"
    assert run.metric("stallwatch_last_step_timestamp_seconds") is not None
    assert run.metric("stallwatch_step_duration_seconds_count") == 10
    assert run.metric("stallwatch_step_duration_seconds_sum") == pytest.approx(20.0)
    assert run.kept("agent.json")["rank_logs"] == ["output.log", "ranks/rank1.log"]


def test_the_copies_hold_what_was_printed(run: Any) -> None:
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
    assert run.told and token not in repr(run.told)
    for path in run.folder.path.rglob("*"):
        assert path.is_dir() or token not in path.read_text()


# --- exceptions that no rule knows, while it is not known whether the command ended

UNKNOWN = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 7, in <module>',
    "    main()",
    "ValueError: the tokenizer has no chat template",
]


def test_an_unknown_exception_that_was_the_last_word_is_told(run: Any) -> None:
    """Such as of a tailed run: nobody sees its end."""
    run.steps(1, 3)
    run.say(*UNKNOWN)
    run.wait(29)
    assert run.told == []
    run.wait(2)
    (finding,) = run.told
    assert (finding.kind, finding.rule, finding.severity) == ("finding", "unknown-failure", "critical")
    assert finding.evidence[-1] == "ValueError: the tokenizer has no chat template"
    run.wait(100)
    assert len(run.changes) == 1
    run.end("unknown", None)
    assert len(run.changes) == 1


def test_an_unknown_exception_that_training_survives_is_no_news(run: Any) -> None:
    run.steps(1, 3)
    run.say(*UNKNOWN)
    run.steps(4, 60)
    run.wait(25)
    assert [each.rule for each in run.told] == []


def test_an_unknown_exception_is_taken_back_when_training_goes_on(run: Any) -> None:
    run.steps(1, 3)
    run.say(*UNKNOWN)
    run.wait(31)
    run.steps(4, 60)
    assert run.changes == [
        ("finding/unknown-failure/1", "open", ""),
        ("finding/unknown-failure/1", "resolved", "recovered"),
    ]


def test_an_unknown_exception_of_the_past_is_no_news(run: Any) -> None:
    run.agent.history(
        "stdout", "".join(f"{line}\n" for line in ["step 1/9 loss 1", *UNKNOWN]).encode(), None, counted=True
    )
    run.agent.history_ends(run.now)
    run.wait(10)
    run.say("a word")
    run.wait(60)
    assert run.told == []


@pytest.mark.parametrize(("lines", "rule"), [(OOM, "cuda-oom"), (UNKNOWN, "unknown-failure")])
def test_what_waits_to_be_told_is_told_when_the_watching_stops(run: Any, lines: list[str], rule: str) -> None:
    run.steps(1, 3)
    run.say(*lines)
    run.end("unknown", None)
    assert run.changes == [(f"finding/{rule}/1", "open", "")]


# --- a second agent in the same folder


def again(run: Any) -> None:
    """The agent is gone, and another goes on in its folder."""
    run.folder = RunFolder.create("sft", ["python", "sft.py"], home=run.home, now=run.now, reuse=True)
    run.told.clear()
    run.agent = Agent(run.folder, run.settings, run.catalogue, [run.told.append], clock=lambda: run.now)


def test_episodes_count_on_and_what_was_left_open_is_resolved(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    run.end("unknown", None)
    again(run)
    assert run.metric("stallwatch_incident_open{rule=silent-hang-no-error,severity=critical}") == 1
    run.steps(11, 20)
    assert run.changes == [(HANG + "/1", "resolved", "recovered")]
    run.wait(40)
    assert run.changes[1:] == [(HANG + "/2", "open", "")]


def test_a_stall_that_still_lasts_is_gone_on_with(run: Any) -> None:
    log = "".join(f"step {step}/1000 loss 0.5\n" for step in range(1, 11)).encode()
    run.steps(1, 10)
    last = run.now
    run.wait(40)
    run.end("unknown", None)
    again(run)
    run.agent.history("stdout", log, None, counted=False)
    run.agent.history_ends(last)
    run.wait(1800)
    assert {each.id for each in run.told} == {"sft/" + HANG + "/1"}
    assert {each.status for each in run.told} == {"open"}


def test_a_torn_record_of_incidents_is_passed_over(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    with (run.folder.path / "incidents.jsonl").open("ab") as out:
        out.write(b'{"id": "sft/st\n\xff\n')
    again(run)
    run.steps(11, 12)
    assert run.changes == [(HANG + "/1", "resolved", "recovered")]


# --- what may not happen


def test_a_diagnosis_that_fails_does_not_keep_an_incident_back(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.steps(1, 10)
    monkeypatch.setattr(run.agent._reading, "diagnose", lambda **_: 1 / 0)
    run.say(*OOM)
    run.wait(40)
    assert run.changes == [("finding/cuda-oom/1", "open", ""), (HANG + "/1", "open", "")]
    assert run.told[1].step == 10 and run.told[1].evidence
    run.end("killed", 137)
    assert run.changes[-1] == ("ended/unknown-failure/1", "open", "")
    assert run.kept("diagnosis.json")["verdict"] == "unknown-failure"
    assert len(run.notices) == 1


def test_a_user_who_cannot_be_told_costs_nothing_else(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    run.agent = Agent(
        run.folder, run.settings, run.catalogue, [run.told.append], clock=lambda: run.now, notice=gone
    )
    run.steps(1, 10)
    monkeypatch.setattr(run.agent._reading, "feed", lambda lines: 1 / 0)
    run.say("a line that cannot be read")
    run.wait(40)
    assert run.changes == [(HANG + "/1", "open", "")]


def test_a_run_that_is_read_late_is_judged_as_of_what_was_read(run: Any) -> None:
    """Files tell no times: what is read late came some time before, and there may be more."""
    run.steps(1, 10)
    read = run.now
    run.now += 100.0
    run.agent.feed("stdout", b"step 11/1000 loss 0.5\n", run.now)
    run.say(*OOM)
    run.agent.tick(run.now, read_until=read)
    assert run.told == []  # the other lines of the failure may still come
    run.now += 2.0
    run.agent.tick(run.now)
    assert run.changes == [("finding/cuda-oom/1", "open", "")]


def test_a_clock_that_is_set_back_does_not_blind_the_agent(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.now -= 3600.0
    run.wait(40)
    assert ("finding/cuda-oom/1", "open", "") in run.changes
    assert any(change[0].startswith("stall/") for change in run.changes)
    assert run.kept("agent.json")["updated_at"] == pytest.approx(run.now, abs=1.5)


def test_a_sink_that_fails_is_told_once_and_the_others_still_hear(run: Any, catalogue: Any) -> None:
    heard: list[Any] = []

    def broken(incident: Any) -> None:
        raise RuntimeError("chat is down")

    agent = Agent(
        run.folder,
        run.settings,
        catalogue,
        [broken, heard.append],
        clock=lambda: run.now,
        notice=run.notices.append,
    )
    run.agent = agent
    run.steps(1, 10)
    run.wait(40)
    run.say("step 11/1000 loss 0.18")
    run.wait(2)
    assert {incident.status for incident in heard} == {"open", "resolved"}
    assert agent.errors >= 2
    assert [text for text in run.notices if "chat is down" in text] == run.notices
    assert len(run.notices) == 1


def test_a_fault_in_the_reader_is_survived(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run.steps(1, 10)
    monkeypatch.setattr(run.agent._reading, "feed", lambda lines: 1 / 0)
    run.say("step 11/1000 loss 0.18")
    monkeypatch.setattr(run.agent._reading, "diagnose", lambda **_: 1 / 0)
    run.wait(40)
    diagnosis = run.end()
    assert diagnosis.verdict == "unknown-failure" and diagnosis.notes
    assert run.agent.errors > 2 and any("ZeroDivisionError" in text for text in run.notices)
    assert b"step 11/1000" in (run.folder.path / "output.log").read_bytes()


def test_a_home_that_cannot_be_written_costs_only_the_copies(watch: Make, tmp_path: Any) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    run = watch()
    run.steps(1, 10)
    run.wait(40)
    run.end()
    assert [change[:2] for change in run.changes][:2] == [(HANG + "/1", "open"), (HANG + "/1", "resolved")]
    assert run.told[-1].kind == "ended"
    assert run.metric("stallwatch_log_lines_total") == 10
    assert (tmp_path / "home").is_file()


def test_binary_junk_and_endless_lines_do_not_hurt(run: Any) -> None:
    run.steps(1, 10)
    run.agent.feed("stdout", bytes(range(256)) * 1000, run.now)
    run.agent.feed("stdout", b"x" * 3_000_000, run.now)
    run.agent.feed("stdout", b"\n\xff\xfe\n", run.now)
    run.steps(11, 12)
    assert run.agent.errors == 0 and run.metric("stallwatch_step") == 12


def test_the_threshold_is_published(watch: Make) -> None:
    run = watch(stall_floor_seconds=5.0, stall_factor=4.0)
    assert run.metric("stallwatch_stall_threshold_seconds{phase=init}") == 3600
    run.steps(1, 12, seconds=2.0)
    run.wait(1)
    assert run.metric("stallwatch_stall_threshold_seconds{phase=train}") == pytest.approx(8.0)


def test_versions_that_the_log_names_become_labels(run: Any) -> None:
    run.say("versions torch=2.6.0 deepspeed=0.16.4 flash-attn=2.7.0")
    run.steps(1, 10)
    run.wait(10)
    labels = None
    for family in run.agent.metrics.registry.collect():
        if family.name == "stallwatch_run":
            labels = family.samples[0].labels
    assert labels is not None
    assert (labels["torch"], labels["deepspeed"], labels["flash_attn"]) == ("2.6.0", "0.16.4", "2.7.0")


def draw(run: Any, step: int) -> None:
    """One state of a tqdm bar: the carriage return stands before it."""
    bar = f"\r {step}%|██        | {step}/100 [00:{step:02}<00:09, 10.0it/s]"
    run.agent.feed("stderr", bar.encode(), run.now, stream="stderr")


@pytest.mark.parametrize("kind", ["killed", "unknown"])
def test_a_run_that_hangs_behind_its_bar_is_no_recovery_when_it_is_killed(watch: Make, kind: str) -> None:
    run = watch(stall_floor_seconds=4.0)
    for step in range(1, 31):
        run.wait(1)
        draw(run, step)
    run.wait(10)
    (stall,) = {incident.id: incident for incident in run.told}.values()
    assert (stall.step, stall.status, stall.rule) == (30, "open", "silent-hang-no-error")
    diagnosis = run.end(kind, 137 if kind == "killed" else None)
    assert "recovered" not in {incident.resolution for incident in run.told}
    assert diagnosis.progress.last_step == 30
    assert diagnosis.verdict in ("stalled", "failed")
    assert "silent-hang-no-error" in [finding.rule for finding in diagnosis.findings]
    if kind == "killed":
        assert run.changes[1:] == [
            (HANG + "/1", "resolved", "run-failed"),
            ("ended/silent-hang-no-error/1", "open", ""),
        ]


def test_a_bar_that_goes_on_after_a_stall_is_a_recovery(watch: Make) -> None:
    run = watch(stall_floor_seconds=4.0)
    for step in range(1, 31):
        run.wait(1)
        draw(run, step)
    run.wait(10)
    draw(run, 31)
    run.wait(2)
    assert run.changes == [(HANG + "/1", "open", ""), (HANG + "/1", "resolved", "recovered")]


def test_an_unfinished_line_at_the_end_of_a_stall_is_no_recovery(watch: Make) -> None:
    run = watch(stall_floor_seconds=4.0)
    run.steps(1, 10, seconds=1.0)
    run.agent.feed("stdout", b"step 11/1000 loss 0.1", run.now)
    run.wait(10)
    diagnosis = run.end("killed", 137)
    assert "recovered" not in {incident.resolution for incident in run.told}
    assert diagnosis.progress.last_step == 11
    assert "silent-hang-no-error" in [finding.rule for finding in diagnosis.findings]


def test_a_recovery_from_a_long_start_names_where_the_run_is_now(watch: Make) -> None:
    run = watch(stall_start_seconds=10.0)
    run.wait(22)
    run.say("step 1/1000 loss 0.5")
    run.wait(1)
    opened, over = [run.told[0], run.told[-1]]
    assert (opened.phase, opened.step) == ("init", None)
    assert (over.resolution, over.phase, over.step) == ("recovered", "train", 1)
