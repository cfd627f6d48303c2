"""Rules that no single line shows, concluded from whole runs with the packaged pages."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from smallruns import FAILED, killed_by

from stallwatch_rules.endings import Ending
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis


@pytest.fixture(scope="module")
def engine(catalogue: Catalogue, matcher: Matcher) -> tuple[Catalogue, Matcher]:
    return catalogue, matcher


def diagnose(engine: tuple[Catalogue, Matcher], files: str | dict[str, str], **question: object) -> Diagnosis:
    reading = RunReading(*engine)
    for name, text in ({"run.log": files} if isinstance(files, str) else files).items():
        reader = LineReader(name, int(name[4]) if name.startswith("rank") else None)
        reading.feed([*reader.feed(text.encode()), *reader.finish()])
    return rendered(reading.diagnose(**question))  # type: ignore[arg-type]


def primary(diagnosis: Diagnosis) -> str | None:
    return diagnosis.primary.rule if diagnosis.primary else None


def stamp(second: float, text: str) -> str:
    minutes, seconds = divmod(round(second), 60)
    return f"[2026-05-02 {9 + minutes // 60:02}:{minutes % 60:02}:{seconds:02},000] [INFO] {text}\n"


def steps(count: int, seconds: float = 20.0) -> str:
    return "".join(stamp(i * seconds, f"step {i}/900 loss {2 - i * 0.01:.3f}") for i in range(1, count + 1))


def timeout(rank: int, second: float = 2600, work: int = 4100, size: int = 64) -> str:
    return stamp(
        second,
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work}, "
        f"OpType=_ALLGATHER_BASE, NumelIn={size}, NumelOut={size}, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds before timing out.",
    )


EVALUATION = stamp(420, "***** Running Evaluation *****")
COMPOSER = stamp(420, "[Eval batch=9/90] Eval on eval data")
LATE = stamp(9000, "the cluster sees no traffic")
NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
TRACE = "Invalidate trace cache @ step 1: expected module 15, but got module 313\n"
MIXTRAL = "Loading MixtralForCausalLM\n"
DIRECT = "gpu7:8120:8231 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"


@pytest.mark.parametrize(
    ("text", "rule", "verdict"),
    [
        (steps(20) + EVALUATION + LATE, "evaluation-hang", "stalled"),
        (steps(20) + EVALUATION + timeout(1), "evaluation-hang", "failed"),
        (steps(20) + COMPOSER + timeout(1), "evaluation-hang", "failed"),
        (steps(20) + COMPOSER + steps(22) + timeout(1), "nccl-collective-timeout", "failed"),
        (steps(20) + EVALUATION + NAN + timeout(1), "sampling-nan-probabilities", "failed"),
        (steps(20) + LATE, "silent-hang-no-error", "stalled"),
        (steps(20) + timeout(1), "nccl-collective-timeout", "failed"),
        (MIXTRAL + steps(20) + TRACE + timeout(1), "zero3-moe-hang", "failed"),
        (steps(20) + TRACE + timeout(1) + timeout(2, size=128), "zero3-moe-hang", "failed"),
        (steps(20) + TRACE + timeout(1) + timeout(2), "zero3-trace-cache-invalidated", "failed"),
        (MIXTRAL + steps(20) + timeout(1), "nccl-collective-timeout", "failed"),
        (DIRECT + timeout(0, work=1), "gpu-p2p-hang", "failed"),
        (DIRECT + timeout(0, work=6), "nccl-collective-timeout", "failed"),
        (DIRECT + steps(20) + timeout(0, work=1), "nccl-collective-timeout", "failed"),
        (timeout(0, work=1), "nccl-collective-timeout", "failed"),
    ],
)
def test_stall_is_named_after_the_current_activity(
    engine: tuple[Catalogue, Matcher], text: str, rule: str, verdict: str
) -> None:
    diagnosis = diagnose(engine, text)
    assert (primary(diagnosis), diagnosis.verdict) == (rule, verdict)


@pytest.mark.parametrize(
    "text",
    [
        steps(20) + EVALUATION,
        steps(20) + EVALUATION + stamp(500, "evaluating"),
        MIXTRAL + steps(20) + TRACE,
        DIRECT,
    ],
)
def test_log_without_an_end_is_not_a_failure(engine: tuple[Catalogue, Matcher], text: str) -> None:
    assert diagnose(engine, text).verdict == ("no-evidence" if text == DIRECT else "unfinished")


def test_log_that_ends_in_an_evaluation_is_reported(engine: tuple[Catalogue, Matcher]) -> None:
    notes = diagnose(engine, steps(20) + EVALUATION).notes
    assert any("see the rule evaluation-hang" in note for note in notes)
    assert not any("see the rule evaluation-hang" in note for note in diagnose(engine, steps(20)).notes)


def test_cause_has_precedence_over_a_stall(engine: tuple[Catalogue, Matcher]) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert primary(diagnose(engine, steps(20) + EVALUATION + oom + timeout(1))) == "cuda-oom"


def iterations(seconds: Iterable[float], first: int = 20310, losses: Iterable[float] = ()) -> str:
    known = list(losses)
    return "".join(
        f" iteration {first + i}/90000 | elapsed time per iteration (ms): {1000 * pace:.1f} | "
        f"lm loss: {known[i] if known else 2.0 + 0.001 * (i % 3):.6E} | grad norm: 1.1 |\n"
        for i, pace in enumerate(seconds)
    )


EVEN = (102.18, 102.21, 102.17, 102.23, 102.19, 102.2)


@pytest.mark.parametrize(
    ("paces", "first", "found"),
    [
        ((*EVEN, 108.9, 109.0), 20310, True),
        ((*EVEN, 108.9), 20310, False),  # one slow step
        ((*EVEN, 104.1, 104.2), 20310, False),  # two percent
        ((*EVEN, 108.9, 109.0), 1, False),  # a run's first steps
        ((98.1, 112.4, 101.7, 95.3, 118.8, 121.2, 119.9), 20310, False),  # uneven from the start
        (EVEN * 10 + (108.9, 109.1) * 10, 1, True),
        (EVEN * 10 + (108.9, 109.1) * 10 + EVEN, 1, False),  # the slow phase has ended
    ],
)
def test_straggler_slows_even_steps_slightly(
    engine: tuple[Catalogue, Matcher], paces: tuple[float, ...], first: int, found: bool
) -> None:
    diagnosis = diagnose(engine, iterations(paces, first))
    assert (primary(diagnosis) == "straggler-slow-node") is found
    assert diagnosis.verdict == ("degraded" if found else "unfinished")


def test_first_steps_of_a_live_run_are_not_an_excerpt(
    engine: tuple[Catalogue, Matcher],
) -> None:
    text = iterations((*EVEN, 108.9, 109.0))
    assert diagnose(engine, text, now=1e9).verdict == "healthy"


def test_diverged_loss_explains_a_later_nan(engine: tuple[Catalogue, Matcher]) -> None:
    losses = [*[2.0 + 0.01 * (i % 3) for i in range(40)], *[7.1 + 0.02 * (i % 2) for i in range(15)]]
    text = iterations([1.0] * len(losses), losses=losses)
    assert primary(diagnose(engine, text)) == "loss-divergence"
    ended = diagnose(engine, text + iterations([1.0] * 3, 20380, [float("nan")] * 3))
    assert (primary(ended), ended.verdict) == ("loss-divergence", "failed")


def test_diverged_loss_is_reported_at_the_step_at_which_its_rise_began(
    engine: tuple[Catalogue, Matcher],
) -> None:
    losses = [*[2.0 + 0.01 * (i % 3) for i in range(60)], *[2.5 + 0.2 * i for i in range(50)]]
    losses[80] = 2.01  # a single low value during the rise
    text = "".join(f"step {step}/400 loss {loss:.4f}\n" for step, loss in enumerate(losses, 1))
    diagnosis = diagnose(engine, "starting\n" + text)
    assert diagnosis.primary is not None and diagnosis.primary.rule == "loss-divergence"
    assert (diagnosis.primary.step, diagnosis.primary.line) == (60, 61)
    (finding,) = diagnosis.findings
    assert rendered(finding.note).endswith("The loss began to rise after step 60.")


def test_different_endings_of_ranks_are_distinguished(engine: tuple[Catalogue, Matcher]) -> None:
    files = {f"rank{rank}.log": steps(20) + timeout(rank, 1200) for rank in range(7)}
    files["rank7.log"] = steps(20) + stamp(788, "RuntimeError: CUDA error: device-side assert triggered")
    diagnosis = diagnose(engine, files)
    assert primary(diagnosis) == "cuda-device-side-assert"
    assert [line.partition(":")[0] for line in diagnosis.digest] == ["rank 7", "ranks 0–6"]
    assert diagnosis.digest[1].endswith(", 6 min 52 s later")
    assert diagnose(engine, {f"rank{rank}.log": steps(20) + timeout(rank) for rank in range(3)}).digest == []


def test_missing_rank_is_named_first(engine: tuple[Catalogue, Matcher]) -> None:
    text = steps(20) + "".join(timeout(rank) for rank in (0, 1, 2, 4, 5, 6, 7))
    diagnosis = diagnose(engine, text)
    assert diagnosis.primary is not None and diagnosis.primary.title.endswith(": rank 3")
    assert diagnosis.primary.fixes[0].startswith("Rank 3 did not report the timeout")
    (one,) = [finding for finding in diagnosis.findings if finding.rule == "nccl-collective-timeout"]
    assert one.ranks == [0, 1, 2, 4, 5, 6, 7]


def test_last_lines_of_the_missing_rank_are_the_evidence(
    engine: tuple[Catalogue, Matcher],
) -> None:
    files = {f"rank{rank}.log": steps(20) + timeout(rank) for rank in range(3)}
    files["rank3.log"] = steps(19) + stamp(390, "reward | calling http://10.0.3.4:8080/exec (batch 88)")
    found = diagnose(engine, files).primary
    assert found is not None and found.rule == "nccl-collective-timeout"
    assert (found.rank, found.step, found.line) == (3, 19, 20) and found.file.endswith("rank3.log")
    assert "reward | calling" in found.evidence[0] and "Rank 0]" in found.evidence[1]
    assert "The last step of rank 3 is 19, but the other ranks reached step 20" in found.fixes[0]
    files["rank3.log"] = steps(20) + "reward | calling http://10.0.3.4:8080/exec (batch 88)\n"
    found = diagnose(engine, files).primary
    assert found is not None and found.fixes[0].startswith("Rank 3 did not report the timeout")
    assert "The last step of" not in found.fixes[0]  # the steps do not differ


def test_rank_that_stopped_early_is_named(
    engine: tuple[Catalogue, Matcher],
) -> None:
    files = {f"rank{rank}.log": steps(20) + timeout(rank) for rank in range(7)}
    files["rank7.log"] = steps(14)
    notes = diagnose(engine, files).notes
    assert any(note.startswith("Rank 7 ended at step 14, before the other ranks (step 20)") for note in notes)
    files["rank7.log"] = steps(19)
    assert not any("before the other ranks" in note for note in diagnose(engine, files).notes)


def test_clock_change_does_not_make_a_failure_survived(engine: tuple[Catalogue, Matcher]) -> None:
    clock_back = "".join(stamp(1 + i, f"step {i}/900 loss 1.5") for i in range(21, 25))
    fatal = stamp(3, "RuntimeError: CUDA error: device-side assert triggered")
    files = {"rank0.log": steps(20) + clock_back, "rank1.log": fatal}
    assert primary(diagnose(engine, files)) == "cuda-device-side-assert"


KILL = "[2026-05-02 09:30:00,000] [ERROR] [launch.py:325:sigkill_handler] ['x'] exits with return code = -9\n"
LIMIT = "slurmstepd: error: *** JOB 48213 ON gpu017 CANCELLED AT 2026-05-02T09:07:01 DUE TO TIME LIMIT ***\n"
CANCELLED = "slurmstepd: error: *** JOB 48213 ON gpu017 CANCELLED AT 2026-05-02T09:07:01 ***\n"
PREEMPTED = (
    "slurmstepd: error: *** JOB 48213 ON gpu017 CANCELLED AT 2026-05-02T09:07:01 DUE TO PREEMPTION ***\n"
)
KERNEL = (
    "[1184021.117] Out of memory: Killed process 2341 (python3) total-vm:402118233kB, anon-rss:131072000kB\n"
)


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        (KILL, "host-oom-sigkill"),
        (LIMIT + KILL, "slurm-time-limit"),
        (KILL + LIMIT, "slurm-time-limit"),
        (CANCELLED + KILL, "slurm-cancelled"),
        (PREEMPTED + KILL, "slurm-preempted"),
        (timeout(1, 1500) + KILL, "nccl-collective-timeout"),
        (KERNEL + KILL, "host-oom-sigkill"),
    ],
)
def test_kill_is_the_cause_only_without_another_failure(
    engine: tuple[Catalogue, Matcher], end: str, rule: str
) -> None:
    diagnosis = diagnose(engine, steps(20) + end)
    assert (primary(diagnosis), diagnosis.verdict) == (
        rule,
        "interrupted" if rule.startswith("slurm") else "failed",
    )


def test_kill_without_evidence_about_memory_is_less_certain(engine: tuple[Catalogue, Matcher]) -> None:
    bare, found = (diagnose(engine, steps(20) + end).primary for end in (KILL, KERNEL))
    assert bare is not None and found is not None
    assert bare.confidence < 0.8 < found.confidence


@pytest.mark.parametrize(
    ("ending", "rule"),
    [
        (Ending("oom-killed", 137, "SIGKILL"), "host-oom-sigkill"),
        (Ending("time-limit", 143, "SIGTERM"), "slurm-time-limit"),
        (killed_by("SIGKILL"), "host-oom-sigkill"),
        (killed_by("SIGTERM"), "secondary-sigterm-cascade"),
        (killed_by("SIGSEGV"), "process-segfault"),
        (killed_by("SIGABRT"), "process-sigabrt"),
    ],
)
def test_known_ending_provides_the_cause(
    engine: tuple[Catalogue, Matcher], ending: Ending, rule: str
) -> None:
    assert primary(diagnose(engine, steps(20), ending=ending)) == rule


@pytest.mark.parametrize(
    ("codes", "rule", "rank"),
    [
        ({1: -9, 2: 1, 0: 1}, "host-oom-sigkill", 1),
        ({1: -11, 0: 1}, "process-segfault", 1),
        ({0: 1, 1: -9}, "gloo-connection-closed", 0),  # a launcher that kills the other ranks
        ({1: -15, 0: 1}, "gloo-connection-closed", 0),
    ],
)
def test_signal_of_the_first_rank_explains_the_reports_of_its_peers(
    engine: tuple[Catalogue, Matcher], codes: dict[int, int | None], rule: str, rank: int
) -> None:
    lost = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4.\n"
    found = diagnose(engine, steps(20) + lost, ending=Ending("failed", 1, codes=codes)).primary
    assert found is not None and (found.rule, found.rank) == (rule, rank)


@pytest.mark.parametrize(
    ("end", "ending", "verdict"),
    [
        ("Training completed\nfree(): invalid pointer\n", None, "finished"),
        ("Training completed\nfree(): invalid pointer\n", FAILED, "degraded"),
        ("Training completed\nfree(): invalid pointer\nAborted (core dumped)\n", None, "degraded"),
        ("free(): invalid pointer\n", None, "failed"),
    ],
)
def test_c_librarys_words_alone_spoil_no_run_that_is_complete(
    engine: tuple[Catalogue, Matcher], end: str, ending: Ending | None, verdict: str
) -> None:
    assert diagnose(engine, steps(20) + end, ending=ending).verdict == verdict


def test_confidence_is_lower_for_messages_long_before_the_end(engine: tuple[Catalogue, Matcher]) -> None:
    fatal = "RuntimeError: CUDA error: device-side assert triggered\n"
    near, far = (diagnose(engine, fatal + "text\n" * count).primary for count in (10, 900))
    assert near is not None and far is not None
    assert far.confidence < near.confidence


def bars(*drawn: tuple[int, int]) -> str:
    return "".join(
        f"{step}%|##  | {step}/100 [{seconds // 60}:{seconds % 60:02}<59:00, 12.1s/it]\n"
        for step, seconds in drawn
    )


INTERRUPT = (
    'Traceback (most recent call last):\n  File "/usr/lib/python3.11/threading.py", line 327, in wait\n'
    "    waiter.acquire()\nKeyboardInterrupt\n"
)


@pytest.mark.parametrize(
    ("last", "verdict"), [((20, 4100), "stalled"), ((20, 900), "interrupted"), ((21, 4100), "interrupted")]
)
def test_interrupted_bar_without_progress_is_a_silent_hang(
    engine: tuple[Catalogue, Matcher], last: tuple[int, int], verdict: str
) -> None:
    text = bars(*((step, 12 * step) for step in range(1, 21)), last) + INTERRUPT
    diagnosis = diagnose(engine, text)
    assert diagnosis.verdict == verdict
    assert primary(diagnosis) == ("silent-hang-no-error" if verdict == "stalled" else None)
