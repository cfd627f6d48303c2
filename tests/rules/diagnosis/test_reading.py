"""Reading a run from its lines: verdict, primary finding, impact. The rules are small ones for the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from smallruns import FAILED, FINISHED, OOM, STAND, START, finding, killed_by, primary, raised, stamped, steps

from stallwatch_rules import reading as reading_module
from stallwatch_rules.endings import Ending
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

Diagnose = Callable[..., Diagnosis]

SERVED = "INFO: GET /page/8 HTTP/1.1 200\n"


# ---- verdicts


def test_text_without_training_has_no_verdict(diagnose: Diagnose) -> None:
    diagnosis = diagnose("Dear Ada,\nthe meeting is at ten.\n")
    assert (diagnosis.verdict, diagnosis.primary, diagnosis.notes) == ("no-training-log", None, [])
    assert diagnose("").verdict == "no-training-log"
    assert diagnose("torch==2.6.0\ndeepspeed==0.16.4\n").verdict == "no-training-log"
    assert diagnose("***** Running training *****\n").verdict == "no-evidence"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ERROR 11-20 10:00:00 engine.py:32] could not reach the head node\n", "unknown-failure"),
        ("a\n[E1120 10:00:00.000000 a.cpp:3] the pool is gone\n", "unknown-failure"),
        ("ERROR: the store is gone\n" + "one line\nand another\n" * 5, "no-training-log"),
        ("Failure to do this will result in skipping the first value\n", "no-training-log"),  # advice
        ("WARNING: the store is slow\n", "no-training-log"),
        (SERVED + "ERROR: page 7 is gone\n" + SERVED, "no-training-log"),  # it served the next page
        (SERVED + "ERROR: the store is gone\n", "unknown-failure"),
        (SERVED + "ERROR: the store is gone\nINFO: exiting with status 1\n", "unknown-failure"),
        (
            "E0000 00:00:1.5 9 cuda_blas.cc:1418] Unable to register cuBLAS factory: one is there\n",
            "no-training-log",
        ),
        (
            "E1221 02:07:21.09 9 torch/_inductor/select_algorithm.py:2100] [7/0] Ignoring this choice.\n",
            "no-training-log",
        ),
    ],
)
def test_text_that_ends_in_a_logged_error_is_a_failure(text: str, verdict: str, diagnose: Diagnose) -> None:
    diagnosis = diagnose(text)
    assert diagnosis.verdict == verdict
    if verdict == "unknown-failure":
        assert [new_line.level for new_line in diagnosis.new_lines] == ["error"]
        assert diagnosis.notes[0].startswith("No training output was recognized")


def test_log_of_steps_is_unfinished(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 30))
    assert (diagnosis.verdict, diagnosis.primary, diagnosis.findings) == ("unfinished", None, [])
    assert diagnosis.progress.last_step == 30


def test_truncated_log_is_unfinished_with_a_note(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 30, total=90))
    assert diagnosis.verdict == "unfinished"
    assert "step 30 of 90" in diagnosis.notes[0]
    assert diagnose(steps(1, 90, total=90)).notes == []
    early = diagnose(steps(1, 30, total=90), ending=FINISHED)
    assert early.verdict == "finished" and ["at step 30 of 90" in note for note in early.notes] == [True]
    assert diagnose(steps(1, 82, total=90), ending=FINISHED).notes == []


def test_known_failure_is_diagnosed(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 7) + raised(OOM))
    assert diagnosis.verdict == "failed"
    assert diagnosis.primary is not None
    assert diagnosis.primary.rule == "cuda-oom"
    assert (diagnosis.primary.step, diagnosis.primary.line) == (7, 11)
    assert diagnosis.primary.evidence == [OOM, "  ~/train.py:5 in main"]
    assert diagnosis.unknown == []


def test_excerpt_is_diagnosed_like_a_whole_log(diagnose: Diagnose) -> None:
    assert primary(diagnose(OOM)) == "cuda-oom"
    assert diagnose("ValueError: nobody knows this one").verdict == "unknown-failure"


def test_unknown_exception_is_diagnosed(diagnose: Diagnose) -> None:
    text = raised("ValueError: nobody knows this one")
    diagnosis = diagnose({"rank1.log": steps(1, 9) + text, "rank0.log": steps(1, 9) + text})
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    (unknown,) = diagnosis.unknown
    assert (unknown.exception, unknown.ranks, unknown.count) == ("ValueError", [0, 1], 2)
    assert unknown.first.step == 9


def test_survived_unknown_exception_is_not_a_failure(diagnose: Diagnose) -> None:
    text = steps(1, 9) + raised("ValueError: upload refused") + steps(10, 12)
    diagnosis = diagnose(text)
    assert diagnosis.verdict == "unfinished"
    assert diagnosis.unknown[0].exception == "ValueError"


def test_unknown_exception_in_a_log_without_steps(diagnose: Diagnose) -> None:
    text = "DeepSpeed info: version=0.16.3\n" + raised("ValueError: optional part is missing")
    assert diagnose(text + "working\n" * 900).verdict == "unknown-failure"
    assert diagnose(text + "working\n" * 1100).verdict == "no-evidence"


def test_failing_thread_does_not_fail_a_finished_run(diagnose: Diagnose) -> None:
    thread = "Exception in thread Uploader:\n" + raised("ConnectionError: no route")
    assert diagnose(steps(1, 90, total=90) + thread).verdict == "finished"
    assert diagnose(steps(1, 30, total=90) + thread).verdict == "unknown-failure"
    assert diagnose(steps(1, 90, total=90) + raised("ConnectionError: no route")).verdict == "unknown-failure"


def test_failed_command_without_a_reason_is_unknown(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 30), ending=Ending("failed", 3, detail=message("run.exited", code=3)))
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    assert diagnosis.ending == "The command exited with code 3."
    assert diagnosis.notes


def test_successful_command_did_not_fail(diagnose: Diagnose) -> None:
    text = steps(1, 9) + raised("ValueError: while closing") + STAND
    diagnosis = diagnose(text, ending=FINISHED)
    assert diagnosis.verdict == "finished"
    assert finding(diagnosis, "collective-timeout").harm == "harmless"


def test_ending_with_a_rule_is_the_cause(diagnose: Diagnose) -> None:
    detail = message("run.oom-host", count=1, how=message("run.status-signal", signal="SIGKILL"))
    diagnosis = diagnose(steps(1, 9), ending=Ending("oom-killed", 137, "SIGKILL", detail))
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "host-oom-sigkill")
    assert finding(diagnosis, "host-oom-sigkill").note.startswith(
        "The kernel's OOM killer killed one process"
    )


def test_step_is_that_of_the_failed_rank(diagnose: Diagnose) -> None:
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


# ---- what a live reader sees, and the report's words


def test_observed_summarizes_a_portion(few_rules: Catalogue) -> None:
    reading = RunReading(few_rules)
    reader = LineReader("run.log")
    observed = reading.feed(reader.feed(f"step 3 loss 0.5\nx.py:1: UserWarning: old\n{OOM}\n".encode()))
    assert [(match.rule, match.step) for match in observed.matches] == [("cuda-oom", 3)]
    assert [sample.step for sample in observed.samples] == [3]
    assert [line.number for line in observed.warnings] == [2]
    assert reading.feed([]) == type(observed)()


def test_diagnosis_does_not_change_the_reading(few_rules: Catalogue) -> None:
    reading = RunReading(few_rules)
    reader = LineReader("run.log")
    reading.feed(reader.feed((steps(1, 5) + raised("ValueError: x")).encode()))
    assert rendered(reading.diagnose()) == rendered(reading.diagnose())
    assert reading.diagnose().verdict == "unknown-failure"
    reading.feed(reader.feed(steps(6, 9).encode()))
    assert reading.diagnose().verdict == "unfinished"


def test_diagnosis_in_chinese(diagnose: Diagnose) -> None:
    diagnosis = diagnose(raised(OOM), language="zh")
    assert diagnosis.primary is not None
    assert (diagnosis.primary.title, diagnosis.primary.why) == ("空间不足", "申请太多。")
    assert diagnosis.primary.fixes[1] == "减少用量。"


def test_fixes_depend_on_versions(diagnose: Diagnose) -> None:
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


def test_memory_for_many_ranks_and_rules_is_bounded(
    few_rules: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "_MAX_RANKS", 64)
    reading = RunReading(few_rules)
    reader = LineReader("run.log")
    for rank in range(100):
        reading.feed(reader.feed(f"[rank{rank}]: {OOM}\n".encode()))
    assert len(reading.streams) == 64
    assert reading.diagnose().verdict == "failed"


SNIPPET = "Traceback (most recent call last):\n  File \"<string>\", line 4, in <module>\nKeyError: 'labels'\n"


def test_code_without_a_file_can_be_the_program(diagnose: Diagnose) -> None:
    for ending in (None, FAILED):
        diagnosis = diagnose(SNIPPET, ending=ending)
        assert diagnosis.verdict == "unknown-failure"
        assert [(item.exception, item.message) for item in diagnosis.unknown] == [("KeyError", "'labels'")]


def test_exception_of_executed_code_with_later_lines_is_not_a_failure(
    diagnose: Diagnose,
) -> None:
    for after in (steps(1, 3), "scored an answer\n" * 30):
        diagnosis = diagnose(steps(0, 1) + SNIPPET + after)
        assert (diagnosis.verdict, diagnosis.unknown) == ("unfinished", [])


def test_long_silence_before_a_successful_end_is_not_a_stall(diagnose: Diagnose) -> None:
    rows = [(float(at), f"step {at} loss 1.5") for at in range(1, 12)]
    text = stamped([*rows, (7200.0, "saved the weights")])
    asked: list[dict[str, object]] = [
        {"ending": FINISHED, "now": 0, "threshold": 30.0, "stalled": True},
        {"ending": FINISHED},
        {"ending": FINISHED},
        {"ending": FINISHED, "stalled": True},
    ]
    for question in asked:
        if "now" in question:
            question["now"] = START.timestamp() + 7300.0
        diagnosis = diagnose(text, **question)
        assert (diagnosis.verdict, diagnosis.primary) == ("finished", None)
    assert diagnose(text).verdict == "stalled"


def test_final_nan_loss_is_a_failure_of_a_successful_command(diagnose: Diagnose) -> None:
    diagnosis = diagnose("{'loss': nan}\n", ending=FINISHED, stalled=True)
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "loss-nan")


def test_no_step_is_reported_if_none_was_seen(diagnose: Diagnose) -> None:
    text = stamped([(float(at), "{'loss': 0.5, 'epoch': 0.1}") for at in range(1, 12)])
    diagnosis = diagnose(text, stalled=True, now=START.timestamp() + 90, threshold=30.0)
    assert (diagnosis.verdict, diagnosis.progress.last_step) == ("stalled", None)
    assert diagnosis.progress.stalled_after_step is None
    assert diagnosis.primary is not None and diagnosis.primary.step is None


def test_nan_loss_is_found_in_a_plain_line(catalogue: Catalogue, matcher: Matcher) -> None:
    reading, reader = RunReading(catalogue, matcher), LineReader("run.log")
    reading.feed(reader.feed(b"step 1/100 loss 2.0\nstep 2/100 loss nan\n"))
    diagnosis = rendered(reading.diagnose())
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "loss-nan")
    assert (diagnosis.progress.last_step, diagnosis.progress.last_loss) == (2, None)


KILLED = killed_by("SIGKILL")


def test_unexplained_kill_is_possibly_out_of_memory(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 9), ending=KILLED)
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "host-oom-sigkill")
    assert diagnosis.primary is not None and diagnosis.primary.confidence == 0.4
    assert "no evidence" in finding(diagnosis, "host-oom-sigkill").note
    counted = diagnose(steps(1, 9), ending=Ending("oom-killed", 137, "SIGKILL"))
    assert counted.primary is not None and counted.primary.confidence == 0.9


def test_stopping_signal_is_reported(diagnose: Diagnose) -> None:
    for ending in (
        killed_by("SIGTERM"),
        killed_by("SIGHUP", passed_on="SIGHUP"),
        killed_by("SIGKILL", passed_on="SIGTERM"),
    ):
        diagnosis = diagnose(steps(1, 9), ending=ending)
        assert (diagnosis.verdict, primary(diagnosis)) == ("interrupted", "secondary-sigterm-cascade")
        assert diagnosis.interrupted_by == "signal"
        assert diagnosis.primary is not None and diagnosis.primary.confidence == 0.5


def test_cause_in_the_log_has_precedence_over_a_signal(diagnose: Diagnose) -> None:
    assert primary(diagnose(steps(1, 9) + OOM + "\n", ending=KILLED)) == "cuda-oom"
    unknown = diagnose(steps(1, 9) + raised("ValueError: x"), ending=KILLED)
    assert (unknown.verdict, unknown.primary) == ("unknown-failure", None)
    assert diagnose(steps(1, 9), ending=killed_by("SIGSEGV")).primary is None
