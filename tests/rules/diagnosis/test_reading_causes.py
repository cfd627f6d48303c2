"""The choice of the cause from several findings: causes, symptoms, wrappers, survived failures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from smallruns import OOM, SIGTERM, STAND, finding, primary, raised, stamped, steps

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

Diagnose = Callable[..., Diagnosis]

TIMED_OUT = (
    "(WorkerDict pid=909) [rank0]:[E809 10:14:11.615 ProcessGroupNCCL.cpp:632] [Rank 0]"
    " Watchdog caught collective operation timeout: WorkNCCL(OpType=_BROADCAST) ran for 600027 ms\n"
)
PEER_GONE = (
    "(WorkerDict pid=908) [rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote"
    " process exiting prematurely.\n"
)
ACTOR_DIED = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tpid: 909\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
    " Worker exit detail:"
)
END_OF_FILE = " Worker unexpectedly exits with a connection error code 2. End of file.\n"
BY_SIGTERM = " Worker exits unexpectedly by a signal. Exit code: 1. The process receives a SIGTERM.\n"
RAY_DIED, RAY_STOPPED = "ray-worker-died-system-error", "ray-worker-terminated"
WRAPPER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


# ---- cause, symptom, wrapper


def test_cause_on_another_rank_has_precedence_over_symptoms(diagnose: Diagnose) -> None:
    logs = {f"rank{rank}.log": f"{steps(1, 5)}{STAND}\n" for rank in range(7)}
    logs["rank7.log"] = steps(1, 5) + raised(OOM)
    logs["launcher.log"] = raised(WRAPPER, "/e/lib/python3.11/site-packages/torch/distributed/run.py")
    diagnosis = diagnose(logs)
    assert diagnosis.primary is not None
    assert (diagnosis.primary.rule, diagnosis.primary.rank) == ("cuda-oom", 7)
    assert diagnosis.primary.confidence > 0.9
    assert [finding.rule for finding in diagnosis.findings] == [
        "cuda-oom",
        "collective-timeout",
        "child-failed",
    ]
    assert finding(diagnosis, "collective-timeout").ranks == list(range(7))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (TIMED_OUT + ACTOR_DIED + END_OF_FILE, "nccl-collective-timeout"),
        (ACTOR_DIED + END_OF_FILE + TIMED_OUT, RAY_DIED),  # the other ranks wait for the dead worker
        (PEER_GONE + ACTOR_DIED + END_OF_FILE, RAY_DIED),
        (f"{OOM}\n{ACTOR_DIED}{END_OF_FILE}", "cuda-oom"),
        (ACTOR_DIED + BY_SIGTERM, RAY_STOPPED),
        (TIMED_OUT + ACTOR_DIED + BY_SIGTERM, "nccl-collective-timeout"),
    ],
)
def test_death_of_a_ray_worker_follows_earlier_failures(catalogue: Catalogue, text: str, cause: str) -> None:
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    assert primary(reading.diagnose()) == cause


def test_unknown_exception_on_another_rank_causes_a_symptom(diagnose: Diagnose) -> None:
    logs = {
        "rank0.log": f"{STAND}\n",
        "rank1.log": raised("KeyError: 'answer'"),
        "launcher.log": f"{SIGTERM}\n{WRAPPER}\n",
    }
    diagnosis = diagnose(logs)
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    assert diagnosis.unknown[0].ranks == [1]
    assert {finding.rule for finding in diagnosis.findings} >= {"collective-timeout", "child-failed"}


SUMMARY = """\
{sigterm}
{wrapper}
Failures:
[1]:
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 911)
  traceback : Traceback (most recent call last):
    File "/home/ada/train.py", line 7, in main
      collect()
  ValueError: a later failure

Root Cause (first observed failure):
[0]:
  rank      : 7 (local_rank: 7)
  exitcode  : 1 (pid: 915)
  traceback : Traceback (most recent call last):
    File "/home/ada/train.py", line 5, in main
      run()
  {error}

=====
"""


@pytest.mark.parametrize(
    ("error", "cause", "ranks"),
    [("RuntimeError: mat2 must be col_major", None, [7]), (OOM, "cuda-oom", [7])],
)
def test_first_failure_that_a_launcher_quotes_is_the_cause(
    diagnose: Diagnose, error: str, cause: str | None, ranks: list[int]
) -> None:
    text = SUMMARY.format(sigterm=SIGTERM, wrapper=WRAPPER, error=error)
    diagnosis = diagnose({"launcher.log": steps(1, 5) + text})
    assert primary(diagnosis) == cause
    if cause is None:
        assert [(each.message, each.ranks) for each in diagnosis.unknown] == [
            ("mat2 must be col_major", ranks),
            ("a later failure", [3]),
        ]


def test_launcher_is_not_the_only_output_if_it_quotes_an_exception(diagnose: Diagnose) -> None:
    text = SUMMARY.format(sigterm=SIGTERM, wrapper=WRAPPER, error="RuntimeError: mat2 must be col_major")
    alone = diagnose({"launcher.log": text[: text.index("  traceback")]}).primary
    quoted = diagnose({"launcher.log": text[: text.rindex("  traceback")]}).primary
    assert alone is not None and "only the launcher's output" in alone.fixes[0]
    assert quoted is not None and "only the launcher's output" not in " ".join(quoted.fixes)


def test_symptom_before_an_unknown_exception_remains_primary(diagnose: Diagnose) -> None:
    diagnosis = diagnose({"rank0.log": f"{STAND}\n" + raised("KeyError: 'closed'")})
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "collective-timeout")
    assert "KeyError" in diagnosis.notes[0]


def test_rank_without_the_common_report_is_named(diagnose: Diagnose) -> None:
    diagnosis = diagnose({f"rank{rank}.log": f"{STAND}\n" for rank in (0, 1, 3)})
    assert diagnosis.primary is not None and "Rank 2" in diagnosis.primary.fixes[0]


def test_wrapper_alone_has_advice(diagnose: Diagnose) -> None:
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


def test_signals_of_the_launcher_are_consequences(diagnose: Diagnose) -> None:
    failed = "failed (exitcode: 1) local_rank: 0 (pid: 90) of binary: /usr/bin/python3\n"
    assert primary(diagnose(f"{SIGTERM}\n{failed}{WRAPPER}\n")) == "child-failed"
    assert primary(diagnose(f"{SIGTERM}\n{WRAPPER}\n")) == "secondary-sigterm-cascade"
    by_sigterm = failed.replace("exitcode: 1)", "exitcode: -15)")
    assert primary(diagnose(f"{SIGTERM}\n{by_sigterm}{WRAPPER}\n")) == "secondary-sigterm-cascade"


def test_earlier_of_two_causes_is_primary(diagnose: Diagnose) -> None:
    logs = {
        "rank0.log": stamped([(1, "step 1 loss 1.5"), (900, OOM)]),
        "rank1.log": stamped([(1, "step 1 loss 1.5"), (400, "OSError: No space left on device")]),
    }
    assert primary(diagnose(logs)) == "disk-full"


def test_inherited_times_do_not_count(diagnose: Diagnose) -> None:
    """Otherwise, steps logged after the only timestamp would seem to have followed the failure."""
    early = "[2026-05-02 09:00:00,000] [INFO] start\n"
    later = "".join(f"[2026-05-02 09:{step:02}:00,000] step {step} loss 1.5\n" for step in range(1, 30))
    diagnosis = diagnose({"rank0.log": later, "rank1.log": early + raised(OOM)})
    assert (diagnosis.verdict, primary(diagnosis)) == ("failed", "cuda-oom")


def test_survived_failure_is_not_a_failure(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 5) + "OSError: No space left on device\n" + steps(6, 20))
    assert (diagnosis.verdict, diagnosis.primary) == ("unfinished", None)
    found = finding(diagnosis, "disk-full")
    assert found.harm == "harmless"
    assert "15 steps" in found.note


def test_nan_loss_begins_after_the_last_finite_loss(diagnose: Diagnose) -> None:
    losses = {step: "nan" if step == 4 or step > 20 else "1.5" for step in range(1, 60)}
    found = diagnose(
        "".join(f"{{'loss': {loss}, 'step': {step}}}\n" for step, loss in losses.items())
    ).primary
    assert found is not None
    assert (found.rule, found.line, found.step) == ("loss-nan", 21, 21)
    first = "The loss has been NaN or infinite since step 21. "
    assert found.fixes[0].startswith(first) and not found.fixes[0].endswith(first)


def test_lasting_nan_is_a_failure(diagnose: Diagnose) -> None:
    good = "".join(f"{{'loss': 1.5, 'step': {step}}}\n" for step in range(1, 6))
    nan = "".join(f"{{'loss': nan, 'step': {step}}}\n" for step in range(6, 30))
    assert primary(diagnose(good + nan)) == "loss-nan"
    recovered = diagnose(good + "{'loss': nan, 'step': 6}\n" + steps(7, 60))
    assert recovered.verdict == "unfinished"


def test_infinite_gradients_in_the_first_steps_are_harmless(catalogue: Catalogue, matcher: Matcher) -> None:
    def infinite(first: int, value: str = "inf") -> str:
        return "".join(
            f"{{'loss': 1.5, 'grad_norm': {value}, 'step': {n}}}\n" for n in range(first, first + 9)
        )

    def read(text: str) -> str:
        reading, reader = RunReading(catalogue, matcher), LineReader("run.log")
        reading.feed([*reader.feed(text.encode()), *reader.finish()])
        return reading.diagnose().verdict

    assert read(infinite(1)) == "unfinished"
    assert read(infinite(1, "nan")) == "degraded"
    assert read(infinite(15)) == "degraded"


def test_single_nan_gradient_is_harmless(diagnose: Diagnose) -> None:
    once = "{'loss': 1.5, 'grad_norm': nan, 'step': 1}\n"
    assert diagnose(once + steps(2, 60)).verdict == "unfinished"
    assert diagnose(steps(1, 60) + once.replace("1}", "61}")).verdict == "degraded"


def test_constant_nan_gradient_is_reported(
    diagnose: Diagnose,
) -> None:
    def bar(first: int, last: int) -> str:
        return "".join(
            f"  1%|          | {n}/1233 [{n}:40<13:43:48, 40.75s/it]\n" for n in range(first, last)
        )

    def run(first: str, second: str) -> str:
        record = "{{'loss': 1.{}, 'grad_norm': {}, 'learning_rate': {}e-06, 'epoch': 0.0{}}}\n".format
        return bar(1, 11) + record(7, first, 1, 1) + bar(11, 21) + record(1, second, 2, 2) + bar(21, 30)

    assert diagnose(run("nan", "nan")).verdict == "degraded"
    assert diagnose(run("nan", "2.1")).verdict == "unfinished"


def test_rule_with_a_required_context_fires_only_with_it(diagnose: Diagnose) -> None:
    assert diagnose("the node is bad\n").verdict == "no-training-log"
    assert primary(diagnose("the node is bad\nrunning on a10\n")) == "bad-node"
    elsewhere = {"rank0.log": "the node is bad\n", "rank1.log": "running on a10\n"}
    assert diagnose(elsewhere).primary is None


def test_line_without_a_rank_can_belong_to_any_rank(diagnose: Diagnose) -> None:
    assert primary(diagnose("the node is bad\n[rank3]: running on a10\n")) == "bad-node"
    assert primary(diagnose("[rank3]: the node is bad\nrunning on a10\n")) == "bad-node"
    assert diagnose("[rank3]: the node is bad\n[rank4]: running on a10\n").primary is None


def test_stopping_by_hand_is_not_a_failure(diagnose: Diagnose) -> None:
    text = steps(1, 9) + raised("KeyboardInterrupt") + f"{SIGTERM}\n{WRAPPER}\n"
    diagnosis = diagnose(text + raised("ValueError: queue is closed"))
    assert diagnosis.verdict == "interrupted"
    assert "Control+C" in diagnosis.notes[0]
    assert finding(diagnosis, "child-failed").harm == "harmless"
