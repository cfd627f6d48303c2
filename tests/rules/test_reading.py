"""A run read from its lines: verdict, primary, harm. The rules are small ones made for the test."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import parse_page
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Finding

Diagnose = Callable[..., Diagnosis]

START = datetime(2026, 5, 2, 9, 0, tzinfo=timezone.utc)
TRACE = "Invalidate trace cache @ step 12: expected module 7, but got module 3"
STAND = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 1800123 milliseconds"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
WRAPPER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
SIGTERM = "Sending process 812 closing signal SIGTERM"


@pytest.fixture
def few_rules(page_text: Callable[..., str]) -> Catalogue:
    def page(rule: str, family: str = "memory", **front: object) -> object:
        patterns = front.get("patterns")
        fires = ("anything",) if patterns == [] else (str(patterns[0]).replace("\\", ""),)  # type: ignore[index]
        text = page_text(id=rule, family=family, title=f"Title of {rule}", fires=fires, **front)
        return parse_page(text, f"{family}/{rule}.md")

    trace = {"patterns": ["Invalidate trace cache @ step"], "harm": "by-progress"}
    overflow = {"patterns": ["OVERFLOW! Rank \\d+ Skipping step"], "harm": "by-progress"}
    pages = [
        page("cuda-oom", patterns=["OutOfMemoryError: CUDA out of memory"], explains=["collective-timeout"]),
        page("bad-node", patterns=["node is bad"], requires=["running on a10"]),
        page("disk-full", patterns=["No space left on device"]),
        page("loss-nan", "numerics", patterns=["'loss': nan"]),
        page("network-retry", patterns=["entering retry loop"], harm="harmless", role="notice"),
        page("collective-timeout", "collectives", patterns=["collective operation timeout"], role="symptom"),
        page("child-failed", "scheduler-and-process", patterns=["ChildFailedError"], role="wrapper"),
        page(
            "secondary-sigterm-cascade",
            "scheduler-and-process",
            patterns=["closing signal SIGTERM"],
            role="symptom",
        ),
        page("grad-norm-nan", "numerics", patterns=["'grad_norm': nan"], harm="degrading"),
        page(
            "keyboard-interrupt",
            "scheduler-and-process",
            patterns=["^KeyboardInterrupt"],
            role="notice",
            harm="harmless",
        ),
        page("zero3-trace-cache-invalidated", "deepspeed-zero3", **trace),
        page("fp16-overflow-every-step", "numerics", **overflow),
        page("silent-hang-no-error", "stalls", patterns=[], role="symptom"),
        page("step-time-degraded", "performance", patterns=[], harm="degrading"),
        page("host-oom-sigkill", "memory", patterns=["Out of memory: Killed process"]),
    ]
    return Catalogue.of(pages)  # type: ignore[arg-type]


@pytest.fixture
def diagnose(few_rules: Catalogue) -> Diagnose:
    """``diagnose("text", …)`` or ``diagnose({"rank0.log": "text"}, …)``."""

    def ask(texts: str | dict[str, str], **question: object) -> Diagnosis:
        reading = RunReading(few_rules)
        for name, text in ({"run.log": texts} if isinstance(texts, str) else texts).items():
            rank = int(name[4]) if name.startswith("rank") else None
            reader = LineReader(name, rank)
            reading.feed([*reader.feed(text.encode()), *reader.finish()])
        return reading.diagnose(**question)  # type: ignore[arg-type]

    return ask


def steps(first: int, last: int, *, total: int | None = None) -> str:
    of = f"/{total}" if total else ""
    return "".join(f"step {step}{of} loss 1.5\n" for step in range(first, last + 1))


def stamped(rows: list[tuple[float, str]]) -> str:
    """Lines as a container runtime keeps them, at seconds after the start."""
    return "".join(
        f"{(START + timedelta(seconds=at)).strftime('%Y-%m-%dT%H:%M:%S.%f')}000Z stdout F {text}\n"
        for at, text in rows
    )


def raised(error: str, file: str = "/home/ada/train.py") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 5, in main\n    run()\n{error}\n'


def primary(diagnosis: Diagnosis) -> str | None:
    return diagnosis.primary.rule if diagnosis.primary else None


def finding(diagnosis: Diagnosis, rule: str) -> Finding:
    return next(one for one in diagnosis.findings if one.rule == rule)


# ---- verdicts


def test_a_text_without_training_is_not_guessed_at(diagnose: Diagnose) -> None:
    diagnosis = diagnose("Dear Ada,\nthe meeting is at ten.\n")
    assert (diagnosis.verdict, diagnosis.primary, diagnosis.notes) == ("no-training-log", None, [])
    assert diagnose("").verdict == "no-training-log"
    assert diagnose("torch==2.6.0\ndeepspeed==0.16.4\n").verdict == "no-training-log"
    assert diagnose("***** Running training *****\n").verdict == "healthy"


def test_steps_alone_are_healthy(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 30))
    assert (diagnosis.verdict, diagnosis.primary, diagnosis.findings) == ("healthy", None, [])
    assert diagnosis.progress.last_step == 30


def test_a_log_that_just_ends_is_healthy_with_a_note(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 30, total=90))
    assert diagnosis.verdict == "healthy"
    assert "step 30 of 90" in diagnosis.notes[0]
    assert diagnose(steps(1, 90, total=90)).notes == []
    assert diagnose(steps(1, 30, total=90), ending="finished", failed=False).notes == []


def test_a_known_failure(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 7) + raised(OOM))
    assert diagnosis.verdict == "failed"
    assert diagnosis.primary is not None
    assert diagnosis.primary.rule == "cuda-oom"
    assert (diagnosis.primary.step, diagnosis.primary.line) == (7, 11)
    assert diagnosis.primary.evidence == [OOM]
    assert diagnosis.unknown == []


def test_an_excerpt_is_diagnosed_like_a_whole_log(diagnose: Diagnose) -> None:
    assert primary(diagnose(OOM)) == "cuda-oom"
    assert diagnose("ValueError: nobody knows this one").verdict == "unknown-failure"


def test_an_unknown_exception(diagnose: Diagnose) -> None:
    text = raised("ValueError: nobody knows this one")
    diagnosis = diagnose({"rank1.log": steps(1, 9) + text, "rank0.log": steps(1, 9) + text})
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    (unknown,) = diagnosis.unknown
    assert (unknown.exception, unknown.ranks, unknown.count) == ("ValueError", [0, 1], 2)
    assert unknown.first.step == 9


def test_an_unknown_exception_that_training_survived(diagnose: Diagnose) -> None:
    text = steps(1, 9) + raised("ValueError: upload refused") + steps(10, 12)
    diagnosis = diagnose(text)
    assert diagnosis.verdict == "healthy"
    assert diagnosis.unknown[0].exception == "ValueError"


def test_an_unknown_exception_long_before_the_end_of_a_log_without_steps(diagnose: Diagnose) -> None:
    text = "DeepSpeed info: version=0.16.3\n" + raised("ValueError: optional part is missing")
    assert diagnose(text + "working\n" * 900).verdict == "unknown-failure"
    assert diagnose(text + "working\n" * 1100).verdict == "healthy"


def test_a_thread_that_fails_does_not_end_a_run_that_reached_its_end(diagnose: Diagnose) -> None:
    thread = "Exception in thread Uploader:\n" + raised("ConnectionError: no route")
    assert diagnose(steps(1, 90, total=90) + thread).verdict == "healthy"
    assert diagnose(steps(1, 30, total=90) + thread).verdict == "unknown-failure"
    assert diagnose(steps(1, 90, total=90) + raised("ConnectionError: no route")).verdict == "unknown-failure"


def test_a_failed_command_without_a_reason(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 30), failed=True, ending="failed: exit code 3")
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    assert diagnosis.ending == "exit code 3"
    assert diagnosis.notes


def test_a_command_that_ended_well_did_not_fail(diagnose: Diagnose) -> None:
    text = steps(1, 9) + raised("ValueError: while closing") + STAND
    diagnosis = diagnose(text, failed=False, ending="finished")
    assert diagnosis.verdict == "healthy"
    assert finding(diagnosis, "collective-timeout").harm == "harmless"


def test_an_ending_that_a_rule_stands_for(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 9), failed=True, ending="oom-killed: the kernel ended process 812")
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "host-oom-sigkill")
    assert finding(diagnosis, "host-oom-sigkill").note == "the kernel ended process 812"


def test_a_step_is_that_of_the_rank_itself(diagnose: Diagnose) -> None:
    """Not the one that the files read before had reached."""
    logs = {"rank0.log": steps(1, 90), "rank1.log": steps(1, 12) + raised(OOM)}
    diagnosis = diagnose(logs)
    assert diagnosis.primary is not None
    assert (diagnosis.primary.step, diagnosis.findings[0].first.step) == (12, 12)
    without = diagnose({"rank0.log": steps(1, 90), "rank1.log": raised(OOM)})
    assert without.primary is not None
    assert without.primary.step == 90, "what ended the run came at its end"
    timed = {
        "rank0.log": stamped([(float(step), f"step {step} loss 1.5") for step in range(1, 20)]),
        "rank1.log": stamped([(7.5, OOM)]),
    }
    assert diagnose(timed).findings[0].first.step == 7


# ---- cause, symptom, wrapper


def test_a_cause_on_another_rank_beats_the_symptoms(diagnose: Diagnose) -> None:
    logs = {f"rank{rank}.log": f"{steps(1, 5)}{STAND}\n" for rank in range(7)}
    logs["rank7.log"] = steps(1, 5) + raised(OOM)
    logs["launcher.log"] = raised(WRAPPER, "/e/lib/python3.11/site-packages/torch/distributed/run.py")
    diagnosis = diagnose(logs)
    assert diagnosis.primary is not None
    assert (diagnosis.primary.rule, diagnosis.primary.rank) == ("cuda-oom", 7)
    assert diagnosis.primary.confidence > 0.9
    assert [one.rule for one in diagnosis.findings] == ["cuda-oom", "collective-timeout", "child-failed"]
    assert finding(diagnosis, "collective-timeout").ranks == list(range(7))


def test_an_unknown_exception_on_another_rank_is_the_cause_of_a_symptom(diagnose: Diagnose) -> None:
    logs = {
        "rank0.log": f"{STAND}\n",
        "rank1.log": raised("KeyError: 'answer'"),
        "launcher.log": f"{SIGTERM}\n{WRAPPER}\n",
    }
    diagnosis = diagnose(logs)
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    assert diagnosis.unknown[0].ranks == [1]
    assert {one.rule for one in diagnosis.findings} >= {"collective-timeout", "child-failed"}


def test_a_symptom_before_an_unknown_exception_stays_the_primary(diagnose: Diagnose) -> None:
    diagnosis = diagnose({"rank0.log": f"{STAND}\n" + raised("KeyError: 'closed'")})
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "collective-timeout")
    assert "KeyError" in diagnosis.notes[0]


def test_a_rank_that_did_not_report_what_all_others_did(diagnose: Diagnose) -> None:
    diagnosis = diagnose({f"rank{rank}.log": f"{STAND}\n" for rank in (0, 1, 3)})
    assert "rank 2" in diagnosis.notes[0]


def test_a_wrapper_alone_says_where_to_look(diagnose: Diagnose) -> None:
    text = f"""\
{WRAPPER}
============
train.py FAILED
------------
Failures:
[1]:
  rank      : 5 (local_rank: 5)
  exitcode  : -15 (pid: 91)
Root Cause (first observed failure):
[0]:
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 90)
"""
    diagnosis = diagnose(text)
    assert diagnosis.primary is not None
    assert (diagnosis.verdict, diagnosis.primary.role) == ("unknown-failure", "wrapper")
    assert diagnosis.primary.confidence < 0.5
    assert "rank 3" in diagnosis.primary.fixes[0]
    assert "5" not in diagnosis.primary.fixes[0]


def test_a_launcher_ends_the_others_after_a_failure(diagnose: Diagnose) -> None:
    failed = "failed (exitcode: 1) local_rank: 0 (pid: 90) of binary: /usr/bin/python3\n"
    assert primary(diagnose(f"{SIGTERM}\n{failed}{WRAPPER}\n")) == "child-failed"
    assert primary(diagnose(f"{SIGTERM}\n{WRAPPER}\n")) == "secondary-sigterm-cascade"
    by_sigterm = failed.replace("exitcode: 1)", "exitcode: -15)")
    assert primary(diagnose(f"{SIGTERM}\n{by_sigterm}{WRAPPER}\n")) == "secondary-sigterm-cascade"


def test_of_two_causes_the_earlier_by_time(diagnose: Diagnose) -> None:
    logs = {
        "rank0.log": stamped([(1, "step 1 loss 1.5"), (900, OOM)]),
        "rank1.log": stamped([(1, "step 1 loss 1.5"), (400, "OSError: No space left on device")]),
    }
    assert primary(diagnose(logs)) == "disk-full"


def test_times_that_lines_only_inherited_do_not_count(diagnose: Diagnose) -> None:
    """Without this, steps logged after the only timestamp would look as if they had followed the failure."""
    early = "[2026-05-02 09:00:00,000] [INFO] start\n"
    later = "".join(f"[2026-05-02 09:{step:02}:00,000] step {step} loss 1.5\n" for step in range(1, 30))
    diagnosis = diagnose({"rank0.log": later, "rank1.log": early + raised(OOM)})
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "cuda-oom")


def test_a_failure_that_training_survived_is_not_the_end(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 5) + "OSError: No space left on device\n" + steps(6, 20))
    assert (diagnosis.verdict, diagnosis.primary) == ("healthy", None)
    found = finding(diagnosis, "disk-full")
    assert found.harm == "harmless"
    assert "15 steps" in found.note


def test_nan_that_stays_is_the_end(diagnose: Diagnose) -> None:
    good = "".join(f"{{'loss': 1.5, 'step': {step}}}\n" for step in range(1, 6))
    nan = "".join(f"{{'loss': nan, 'step': {step}}}\n" for step in range(6, 30))
    assert primary(diagnose(good + nan)) == "loss-nan"
    recovered = diagnose(good + "{'loss': nan, 'step': 6}\n" + steps(7, 60))
    assert recovered.verdict == "healthy"


def test_infinite_gradients_of_the_first_steps_are_how_fp16_finds_its_scale(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    def infinite(first: int, value: str = "inf") -> str:
        return "".join(
            f"{{'loss': 1.5, 'grad_norm': {value}, 'step': {n}}}\n" for n in range(first, first + 9)
        )

    def read(text: str) -> str:
        reading, reader = RunReading(catalogue, matcher), LineReader("run.log")
        reading.feed([*reader.feed(text.encode()), *reader.finish()])
        return reading.diagnose().verdict

    assert read(infinite(1)) == "healthy"
    assert read(infinite(1, "nan")) == "degraded"
    assert read(infinite(15)) == "degraded"


def test_a_gradient_that_was_nan_once_degrades_nothing(diagnose: Diagnose) -> None:
    once = "{'loss': 1.5, 'grad_norm': nan, 'step': 1}\n"
    assert diagnose(once + steps(2, 60)).verdict == "healthy"
    assert diagnose(steps(1, 60) + once.replace("1}", "61}")).verdict == "degraded"


def test_a_rule_that_needs_a_context(diagnose: Diagnose) -> None:
    assert diagnose("the node is bad\n").verdict == "no-training-log"
    assert primary(diagnose("the node is bad\nrunning on a10\n")) == "bad-node"
    elsewhere = {"rank0.log": "the node is bad\n", "rank1.log": "running on a10\n"}
    assert diagnose(elsewhere).primary is None


def test_a_line_without_a_rank_may_be_of_any_rank_of_its_file(diagnose: Diagnose) -> None:
    assert primary(diagnose("the node is bad\n[rank3]: running on a10\n")) == "bad-node"
    assert primary(diagnose("[rank3]: the node is bad\nrunning on a10\n")) == "bad-node"
    assert diagnose("[rank3]: the node is bad\n[rank4]: running on a10\n").primary is None


def test_stopping_by_hand_is_no_failure(diagnose: Diagnose) -> None:
    text = steps(1, 9) + raised("KeyboardInterrupt") + f"{SIGTERM}\n{WRAPPER}\n"
    diagnosis = diagnose(text + raised("ValueError: queue is closed"))
    assert diagnosis.verdict == "healthy"
    assert "by hand" in diagnosis.notes[0]
    assert finding(diagnosis, "child-failed").harm == "harmless"


# ---- stalls


def hang(silence: float, *, pace: float = 2.0, count: int = 20) -> list[tuple[float, str]]:
    rows = [(pace * step, f"step {step}/500 loss 1.5") for step in range(1, count + 1)]
    return [*rows, (pace * count + silence, "the health check still finds the process alive")]


def test_a_silence_longer_than_the_runs_rhythm(diagnose: Diagnose) -> None:
    diagnosis = diagnose(stamped(hang(3000)))
    assert (diagnosis.verdict, primary(diagnosis)) == ("stalled", "silent-hang-no-error")
    assert diagnosis.progress.stalled_after_step == 20
    assert diagnosis.primary is not None
    assert diagnosis.primary.step == 20
    assert diagnose(stamped(hang(20))).verdict == "healthy"
    assert diagnose(stamped(hang(90, pace=60))).verdict == "healthy", "slow steps are this run's rhythm"


def test_a_silence_like_one_before_is_no_news(diagnose: Diagnose) -> None:
    rows = [(2.0 * step, f"step {step} loss 1.5") for step in range(1, 400)]
    rows += [(2.0 * step + 600, f"step {step} loss 1.5") for step in range(400, 800)]
    rows.append((2.0 * 800 + 1200, "evaluating"))
    assert diagnose(stamped(rows)).verdict == "healthy"


def test_a_run_that_goes_on_printing_after_a_silence_did_not_hang(diagnose: Diagnose) -> None:
    rows = [(2.0 * step, f"step {step} loss 1.5") for step in range(1, 30)]
    rows += [(1500 + line, f"answer {line}: 0.5") for line in range(9)]
    assert diagnose(stamped(rows)).verdict == "healthy"


def test_stalled_as_told_live(diagnose: Diagnose) -> None:
    text = stamped(hang(1)[:-1])
    diagnosis = diagnose(text, stalled=True, now=START.timestamp() + 500, threshold=60.0)
    assert (diagnosis.verdict, primary(diagnosis)) == ("stalled", "silent-hang-no-error")
    assert "60 s" in finding(diagnosis, "silent-hang-no-error").note
    assert diagnose(text, now=START.timestamp() + 50, threshold=60.0).verdict == "healthy"


def test_a_known_cause_explains_a_stall(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 20) + raised(OOM), stalled=True, threshold=60.0)
    assert (diagnosis.verdict, primary(diagnosis)) == ("stalled", "cuda-oom")


def test_trace_cache_messages_while_steps_advance(diagnose: Diagnose) -> None:
    rows, clock = [], 0.0
    for step in range(1, 41):
        clock += 0.4 if step % 2 else 0.5
        if step % 2 == 0:
            rows.append((clock - 0.1, TRACE))
        rows.append((clock, f"step {step} loss 1.5"))
    diagnosis = diagnose(stamped(rows))
    assert (diagnosis.verdict, diagnosis.primary) == ("healthy", None)
    found = finding(diagnosis, "zero3-trace-cache-invalidated")
    assert (found.harm, found.count) == ("harmless", 20)
    assert "0.1 s" in found.note
    assert "0.5 s" in found.note


def test_messages_and_steps_in_different_files_meet_by_time(diagnose: Diagnose) -> None:
    steps_of = [(float(step), f"step {step}/500 loss 1.5") for step in range(1, 41)]
    messages = [(step - 0.5, TRACE) for step in range(2, 41, 2)]
    logs = {"rank0.stdout.log": stamped(messages), "rank0.stderr.log": stamped(steps_of)}
    found = finding(diagnose(logs), "zero3-trace-cache-invalidated")
    assert (found.harm, "39 followed" in found.note) == ("harmless", True)
    logs["rank1.stderr.log"] = stamped([(1800, STAND)])
    assert primary(diagnose(logs)) == "zero3-trace-cache-invalidated"
    untimed = {name: re.sub(r"(?m)^.* stdout F ", "", text) for name, text in logs.items()}
    assert finding(diagnose(untimed), "zero3-trace-cache-invalidated").harm == "by-progress"


def slowing(count: int = 60) -> list[tuple[float, str]]:
    rows, clock = [], 0.0
    for step in range(1, count + 1):
        late = step > 30
        clock += 2.0 if late else 1.0
        rows += [(clock - 0.1, TRACE)] * (3 if late else 0)
        rows.append((clock, f"step {step}/500 loss 1.5"))
    return rows


def test_trace_cache_messages_while_steps_become_slower(diagnose: Diagnose) -> None:
    diagnosis = diagnose(stamped(slowing()))
    assert (diagnosis.verdict, primary(diagnosis)) == ("degraded", "zero3-trace-cache-invalidated")
    assert [one.rule for one in diagnosis.findings][1] == "step-time-degraded"


def test_trace_cache_messages_and_then_no_step(diagnose: Diagnose) -> None:
    rows = slowing()
    live = diagnose(stamped(rows), stalled=True, threshold=30.0, now=START.timestamp() + 500)
    assert (live.verdict, primary(live)) == ("stalled", "zero3-trace-cache-invalidated")
    assert live.progress.stalled_after_step == 60
    dead = diagnose(stamped([*rows, (2000, STAND)]))
    assert (dead.verdict, primary(dead)) == ("failed", "zero3-trace-cache-invalidated")
    assert dead.primary is not None
    assert dead.primary.confidence <= 0.6
    assert [one.rule for one in dead.findings][1] == "collective-timeout"


def test_trace_cache_messages_long_before_a_stall_are_not_its_cause(diagnose: Diagnose) -> None:
    text = f"{TRACE}\n" + steps(1, 80) + f"{STAND}\n"
    diagnosis = diagnose(text)
    assert primary(diagnosis) == "collective-timeout"
    assert finding(diagnosis, "zero3-trace-cache-invalidated").harm == "harmless"


def test_a_bare_trace_cache_line_is_never_a_failure(diagnose: Diagnose) -> None:
    diagnosis = diagnose(f"{TRACE}\n")
    assert (diagnosis.verdict, diagnosis.primary) == ("healthy", None)
    assert finding(diagnosis, "zero3-trace-cache-invalidated").harm == "by-progress"


def test_slow_steps_of_a_run_that_reached_its_end_degrade_nothing(diagnose: Diagnose) -> None:
    rows = [(step * 1.0 if step <= 40 else 40 + (step - 40) * 3.0, step) for step in range(1, 81)]
    half = stamped([(at, f"step {step}/200 loss 1.5") for at, step in rows])
    assert (diagnose(half).verdict, primary(diagnose(half))) == ("degraded", "step-time-degraded")
    whole = stamped([(at, f"step {step}/80 loss 1.5") for at, step in rows])
    assert diagnose(whole).verdict == "healthy"


def overflow(scale: int, to: int) -> str:
    return (
        "[2026-05-02 09:00:00,000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 "
        f"Skipping step. Attempted loss scale: {scale}, reducing to {to}\n"
    )


def test_overflows_at_the_start_are_calibration(diagnose: Diagnose) -> None:
    text = "".join(overflow(65536 >> n, 32768 >> n) for n in range(4))
    assert finding(diagnose(text), "fp16-overflow-every-step").harm == "harmless"
    assert diagnose(text + steps(1, 90)).verdict == "healthy"


def test_overflows_on_every_step_are_the_end(diagnose: Diagnose) -> None:
    text = steps(1, 60) + "".join(overflow(64 >> n, 32 >> n) + steps(61 + n, 61 + n) for n in range(5))
    assert primary(diagnose(text)) == "fp16-overflow-every-step"
    assert primary(diagnose(steps(1, 60) + overflow(1, 1))) == "fp16-overflow-every-step"


# ---- what a live reader sees, and the report's words


def test_observed_tells_what_a_portion_holds(few_rules: Catalogue) -> None:
    reading = RunReading(few_rules)
    reader = LineReader("run.log")
    observed = reading.feed(reader.feed(f"step 3 loss 0.5\nx.py:1: UserWarning: old\n{OOM}\n".encode()))
    assert [(match.rule, match.step) for match in observed.matches] == [("cuda-oom", 3)]
    assert [sample.step for sample in observed.samples] == [3]
    assert [line.number for line in observed.warnings] == [2]
    assert reading.feed([]) == type(observed)()


def test_a_diagnosis_changes_nothing(few_rules: Catalogue) -> None:
    reading = RunReading(few_rules)
    reader = LineReader("run.log")
    reading.feed(reader.feed((steps(1, 5) + raised("ValueError: x")).encode()))
    assert reading.diagnose() == reading.diagnose()
    assert reading.diagnose().verdict == "unknown-failure"
    reading.feed(reader.feed(steps(6, 9).encode()))
    assert reading.diagnose().verdict == "healthy"


def test_chinese(diagnose: Diagnose) -> None:
    diagnosis = diagnose(raised(OOM), language="zh")
    assert diagnosis.primary is not None
    assert (diagnosis.primary.title, diagnosis.primary.why) == ("空间不足", "申请太多。")
    assert diagnosis.primary.fixes[1] == "减少用量。"


def test_fixes_know_the_versions(diagnose: Diagnose) -> None:
    old = diagnose("DeepSpeed info: version=0.14.5, git-hash=x\n" + OOM)
    new = diagnose("DeepSpeed info: version=0.16.3, git-hash=x\n" + OOM)
    assert old.environment == {"deepspeed": "0.14.5"}
    assert old.primary is not None
    assert new.primary is not None
    assert old.primary.fixes[0] == "Upgrade DeepSpeed."
    assert len(new.primary.fixes) == len(old.primary.fixes) - 1


def test_secrets_are_redacted(diagnose: Diagnose) -> None:
    token = "hf_" + "Ab3" * 12
    diagnosis = diagnose(raised(f"{OOM} {token}") + raised(f"ValueError: {token}"))
    assert token not in str(diagnosis)


def test_many_ranks_and_rules_stay_bounded(few_rules: Catalogue) -> None:
    reading = RunReading(few_rules)
    reader = LineReader("run.log")
    for rank in range(5000):
        reading.feed(reader.feed(f"[rank{rank}]: {OOM}\n".encode()))
    assert len(reading.streams) <= 4096
    assert reading.diagnose().verdict == "failed"


SNIPPET = "Traceback (most recent call last):\n  File \"<string>\", line 4, in <module>\nKeyError: 'labels'\n"


def test_code_without_a_file_may_be_the_program_itself(diagnose: Diagnose) -> None:
    for failed in (None, True):
        diagnosis = diagnose(SNIPPET, failed=failed)
        assert diagnosis.verdict == "unknown-failure"
        assert [(one.exception, one.message) for one in diagnosis.unknown] == [("KeyError", "'labels'")]


def test_an_exception_of_code_without_a_file_that_lines_follow_is_no_failure(
    diagnose: Diagnose,
) -> None:
    for after in (steps(1, 3), "scored an answer\n" * 30):
        diagnosis = diagnose(steps(0, 1) + SNIPPET + after)
        assert (diagnosis.verdict, diagnosis.unknown) == ("healthy", [])


def test_a_long_silence_before_a_good_end_is_no_stall(diagnose: Diagnose) -> None:
    rows = [(float(at), f"step {at} loss 1.5") for at in range(1, 12)]
    text = stamped([*rows, (7200.0, "saved the weights")])
    asked: list[dict[str, object]] = [
        {"ending": "finished: it ended well", "failed": False, "now": 0, "threshold": 30.0, "stalled": True},
        {"ending": "finished: it ended well", "failed": False},
        {"ending": "finished: it ended well"},
        {"failed": False, "stalled": True},
    ]
    for question in asked:
        if "now" in question:
            question["now"] = START.timestamp() + 7300.0
        diagnosis = diagnose(text, **question)
        assert (diagnosis.verdict, diagnosis.primary) == ("healthy", None)
    assert diagnose(text).verdict == "stalled"


def test_a_bad_number_is_a_failure_and_no_stall_where_the_command_ended_well(diagnose: Diagnose) -> None:
    diagnosis = diagnose("{'loss': nan}\n", failed=False, stalled=True)
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "loss-nan")


def test_no_step_is_told_where_none_was_seen(diagnose: Diagnose) -> None:
    text = stamped([(float(at), "{'loss': 0.5, 'epoch': 0.1}") for at in range(1, 12)])
    diagnosis = diagnose(text, stalled=True, now=START.timestamp() + 90, threshold=30.0)
    assert (diagnosis.verdict, diagnosis.progress.last_step) == ("stalled", None)
    assert diagnosis.progress.stalled_after_step is None
    assert diagnosis.primary is not None and diagnosis.primary.step is None


def test_a_plain_line_without_a_colon_tells_a_bad_loss(catalogue: Catalogue, matcher: Matcher) -> None:
    reading, reader = RunReading(catalogue, matcher), LineReader("run.log")
    reading.feed(reader.feed(b"step 1/100 loss 2.0\nstep 2/100 loss nan\n"))
    diagnosis = reading.diagnose()
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "loss-nan")
    assert (diagnosis.progress.last_step, diagnosis.progress.last_loss) == (2, None)


KILLED = "killed: The command was ended by SIGKILL."


def test_a_kill_that_nothing_explains_is_perhaps_for_memory(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 9), failed=True, ending=KILLED)
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "host-oom-sigkill")
    assert diagnosis.primary is not None and diagnosis.primary.confidence == 0.4
    assert "No evidence" in finding(diagnosis, "host-oom-sigkill").note
    counted = diagnose(
        steps(1, 9), failed=True, ending="oom-killed: The kernel's OOM killer took one process."
    )
    assert counted.primary is not None and counted.primary.confidence == 0.9


def test_a_run_that_was_told_to_stop_says_so(diagnose: Diagnose) -> None:
    for ending in (
        "killed: The command was ended by SIGTERM.",
        "killed: SIGHUP was sent to stallwatch, which passed it on; the command was ended by SIGHUP.",
        "killed: SIGTERM was sent to stallwatch, which passed it on; the command was ended by SIGKILL.",
    ):
        diagnosis = diagnose(steps(1, 9), failed=True, ending=ending)
        assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "secondary-sigterm-cascade")
        assert diagnosis.primary is not None and diagnosis.primary.confidence == 0.5


def test_what_the_log_says_comes_before_the_signal(diagnose: Diagnose) -> None:
    assert primary(diagnose(steps(1, 9) + OOM + "\n", failed=True, ending=KILLED)) == "cuda-oom"
    unknown = diagnose(steps(1, 9) + raised("ValueError: x"), failed=True, ending=KILLED)
    assert (unknown.verdict, unknown.primary) == ("unknown-failure", None)
    assert (
        diagnose(steps(1, 9), failed=True, ending="killed: The command was ended by SIGSEGV.").primary is None
    )
