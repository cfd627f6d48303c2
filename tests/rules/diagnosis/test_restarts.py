"""torchrun restarts the workers after a failure: the steps that follow belong to all ranks."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

FAILED = (
    "E1119 08:30:02.110000 91 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1)"
    " local_rank: 1 (pid: 96) of binary: /opt/conda/bin/python\n"
)
AGAIN = (
    "I1119 08:30:03.110000 91 torch/distributed/elastic/agent/server/api.py:870] [default] Worker group"
    " FAILED. {left} attempts left; will restart worker group\n"
)
OVER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
KNOWN = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
UNKNOWN = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/srv/train.py", line 8, in <module>\n'
    "[rank1]:     reward(batch)\n"
    "[rank1]: ValueError: no reward for batch 24\n"
)


def steps(first: int, last: int) -> str:
    return "".join(f"step {n}/60 loss {2 / n + 0.1:.3f}\n" for n in range(first, last + 1))


def diagnose(catalogue: Catalogue, matcher: Matcher, text: str, language: str = "en") -> Diagnosis:
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed(text.encode()))
    return rendered(reading.diagnose(), language)


@pytest.mark.parametrize("error", [KNOWN, UNKNOWN])
@pytest.mark.parametrize("again", [AGAIN.format(left="3/3"), ""])  # INFO, and so off by default
def test_run_continued_after_an_elastic_restart(
    catalogue: Catalogue, matcher: Matcher, error: str, again: str
) -> None:
    found = diagnose(catalogue, matcher, steps(1, 21) + error + FAILED + again + steps(20, 60))
    assert found.verdict == "finished"
    assert [finding.harm for finding in found.findings] == ["harmless"] * len(found.findings)
    places = [item.first.step for item in (*found.findings, *found.unknown)]
    assert set(places) == {21}
    (note,) = found.notes
    assert note.startswith("torchrun restarted the workers once (step 21, local_rank 1, train.log:")
    assert error.splitlines()[-1].removeprefix("[rank1]: ") + " (rank 1)" in note


@pytest.mark.parametrize(
    "end",
    [
        KNOWN + FAILED,  # nothing follows
        KNOWN + FAILED + steps(22, 25),  # rank 0's output was held back
        KNOWN + FAILED + steps(22, 45) + OVER,
        KNOWN + FAILED + OVER + steps(22, 45),
        KNOWN + FAILED + steps(22, 45),
        KNOWN + FAILED + AGAIN.format(left="3/3") + steps(20, 40) + KNOWN + FAILED,  # and failed again
        KNOWN + FAILED + AGAIN.format(left="1/1"),  # it did not come up again
    ],
)
def test_failure_without_a_restart_is_fatal(catalogue: Catalogue, matcher: Matcher, end: str) -> None:
    found = diagnose(catalogue, matcher, steps(1, 21) + end)
    assert found.verdict == "failed"
    assert found.primary is not None and found.primary.rule == "cuda-oom"


@pytest.mark.parametrize(
    ("text", "times"),
    [
        (FAILED + OVER + steps(15, 60), 0),  # a shell's loop started another torchrun
        (FAILED + steps(20, 45) + KNOWN + FAILED + OVER, 1),
    ],
)
def test_torchrun_restarts_nothing_after_its_end(
    catalogue: Catalogue, matcher: Matcher, text: str, times: int
) -> None:
    found = diagnose(catalogue, matcher, steps(1, 21) + KNOWN + text)
    assert sum("torchrun restarted the workers once" in note for note in found.notes) == times


def test_lower_steps_of_unlabelled_ranks_are_not_a_restart(catalogue: Catalogue, matcher: Matcher) -> None:
    both = [f"step {n}/60 loss 1.5\nstep {n - 1}/60 loss 1.5\n" for n in range(2, 50)]
    found = diagnose(catalogue, matcher, "".join(both[:20]) + KNOWN + FAILED + "".join(both[20:]))
    assert not any("torchrun" in note for note in found.notes)


def test_restarts_are_counted_once_for_all_nodes_of_a_run(catalogue: Catalogue, matcher: Matcher) -> None:
    first = KNOWN + FAILED + FAILED + AGAIN.format(left="3/3") + AGAIN.format(left="3/3")
    second = KNOWN + FAILED + AGAIN.format(left="2/3")
    text = steps(1, 21) + first + second + steps(20, 60)
    found = diagnose(catalogue, matcher, text, "zh")
    assert found.verdict == "finished"
    assert any(note.startswith("torchrun 重启过 2 次 worker") for note in found.notes)


def diagnose_attempts(catalogue: Catalogue, matcher: Matcher, **logs: str) -> Diagnosis:
    """Diagnose logs that torchrun wrote for rank 1, and for rank 0, which prints the steps."""
    reading = RunReading(catalogue, matcher)
    for name, text in logs.items():
        attempt, rank = name.removeprefix("a")[0], int(name[-1])
        path = f"logs/run_k2l1abcd/attempt_{attempt}/{rank}/stderr.log"
        reading.feed(LineReader(path, rank).feed(text.encode()))
    return rendered(reading.diagnose(), "en")


def test_failure_of_an_earlier_attempt_did_not_end_the_run(catalogue: Catalogue, matcher: Matcher) -> None:
    error = UNKNOWN.replace("[rank1]: ", "")
    found = diagnose_attempts(
        catalogue, matcher, a0r0=steps(1, 21), a0r1=error, a1r0=steps(20, 60), a1r1="INFO saving\n"
    )
    assert found.verdict == "finished"
    (note,) = found.notes
    assert note.startswith("torchrun restarted the workers once (step 21, attempt_0).")
    assert "ValueError: no reward for batch 24 (rank 1)" in note


def test_crash_of_many_lines_before_a_restart_is_harmless(catalogue: Catalogue, matcher: Matcher) -> None:
    lost = "NCCL error in: NCCLUtils.hpp:317, remote process exited or there was a network error\n"
    found = diagnose_attempts(catalogue, matcher, a0r0=steps(1, 21), a0r1=lost * 9, a1r0=steps(20, 60))
    assert (found.verdict, [finding.harm for finding in found.findings]) == ("finished", ["harmless"])


def test_failure_of_the_newest_attempt_ended_the_run(catalogue: Catalogue, matcher: Matcher) -> None:
    error = UNKNOWN.replace("[rank1]: ", "")
    found = diagnose_attempts(
        catalogue, matcher, a0r0=steps(1, 21), a0r1=error, a1r0=steps(20, 40), a1r1=error
    )
    assert found.verdict == "unknown-failure"


def test_failed_connection_after_a_restart_is_not_the_cause(catalogue: Catalogue, matcher: Matcher) -> None:
    refused = (
        "[rank0]: RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/"
        "pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.1]:2948\n"
    )
    found = diagnose(catalogue, matcher, steps(1, 21) + UNKNOWN + FAILED + refused)
    assert "no reward for batch 24" in found.unknown[0].message
    assert [finding.role for finding in found.findings if finding.rule.startswith("gloo")] == ["symptom"]
    first = diagnose(catalogue, matcher, refused)
    assert first.primary is not None and first.primary.rule == "gloo-connect-full-mesh-failed"


LOST = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: "
    "The connection to the C10d store has failed.\n"
)


@pytest.mark.parametrize(
    ("before", "role", "advice"),
    [
        ("", "cause", "On the failing node, run `getent"),
        (steps(1, 21), "symptom", "Check whether the host in `MASTER_ADDR` is running"),
        (steps(1, 21) + "Training finished\n", "cause", "On the failing node, run `getent"),
    ],
)
def test_rendezvous_lost_after_training_is_not_a_wrong_address(
    catalogue: Catalogue, matcher: Matcher, before: str, role: str, advice: str
) -> None:
    found = diagnose(catalogue, matcher, before + LOST)
    assert found.primary is not None
    assert (found.primary.rule, found.primary.role) == ("rendezvous-connection-failed", role)
    assert str(found.primary.fixes[0]).startswith(advice)
    addresses = [fix for fix in map(str, found.primary.fixes) if "getent" in fix]
    assert len(addresses) == (role == "cause")


DAY = "2026-11-19 08:"


@pytest.mark.parametrize(
    ("other", "role"),
    [
        (LOST, "cause"),  # nothing shows the order of the steps and the failed connection
        (f"{DAY}10:00 starting\n{LOST}", "cause"),
        (f"{DAY}40:00 the workers are up\n{LOST}", "symptom"),
        (f"{DAY}40:00 Training finished\n{DAY}50:00 starting\n{LOST}", "cause"),  # a new start
    ],
)
def test_host_without_steps_had_trained_if_times_show_this(
    catalogue: Catalogue, matcher: Matcher, other: str, role: str
) -> None:
    dated = (f"{DAY}30:{n:02} {line}\n" for n, line in enumerate(steps(1, 21).splitlines()))
    reading = RunReading(catalogue, matcher)
    for name, text in (("n0.log", "".join(dated)), ("n1.log", other)):
        reading.feed(LineReader(name).feed(text.encode()))
    found = next(each for each in reading.diagnose().findings if each.rule == "rendezvous-connection-failed")
    assert found.role == role


def test_attempts_of_a_later_start_in_the_same_folder_count_anew(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    def timed(hour: int, text: str) -> str:
        return "".join(f"2026-11-20 {hour}:00:00 {line}\n" for line in text.splitlines())

    reading = RunReading(catalogue, matcher)
    for run, attempt, text in (
        ("none_aaaaaaaa", 0, timed(10, steps(1, 21)) + UNKNOWN),
        ("none_aaaaaaaa", 1, timed(11, steps(20, 60))),
        ("none_bbbbbbbb", 0, timed(12, steps(1, 9)) + KNOWN),
    ):
        lines = LineReader(f"logs/{run}/attempt_{attempt}/0/stderr.log", 0).feed(text.encode())
        reading.feed(lines)
    found = rendered(reading.diagnose(), "en")
    assert found.primary is not None and found.primary.rule == "cuda-oom"
