"""A failure in a line that the training survives is no failure of the run."""

from __future__ import annotations

import pytest
from smallruns import FAILED, FINISHED

from stallwatch_rules.endings import Crash, Ending
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

STEPS = [f"step {n}/30 loss {2 / n + 0.1:.3f}" for n in range(1, 31)]
NAMED = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([*STEPS[:-1], NAMED, STEPS[-1]], "finished"),  # the run reached its last step
        ([*STEPS[:20], NAMED, STEPS[20]], "failed"),  # it ends in mid-course, and one line may be late
        ([*STEPS[:20], NAMED, *STEPS[20:24]], "unfinished"),
        ([*STEPS, NAMED], "failed"),
        ([NAMED, STEPS[-1]], "failed"),  # what an exception's program draws when it ends
    ],
)
def test_number_of_steps_that_prove_recovery(
    lines: list[str], verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reader = LineReader("train.log")
    reading.feed(reader.feed("\n".join(lines).encode() + b"\n"))
    assert reading.diagnose().verdict == verdict


def bar(done: int) -> str:
    return f" {done // 4:2}%|█         | {done}/400 [{done:02}:00<2:00:00, 60.00s/it]"


BARS = [bar(done) for done in range(1, 11)]
RAISED = (
    f'Traceback (most recent call last):\n  File "/srv/train.py", line 7, in <module>\n    main()\n{NAMED}'
)
HANDLED = f"[WARNING] skipping batch 11\n{RAISED}"
KILLS = [
    f"[2026-05-11 08:14:02,118] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {n}"
    for n in (4171, 4172)
]
STOPPED = (
    "[2026-05-11 08:14:03,120] [INFO] [launch.py:331:sigkill_handler] Main process received SIGINT, exiting"
)


@pytest.mark.parametrize(
    ("below", "verdict"),
    [
        # A program that dies draws its bar once more, with the steps that it completed before the exception.
        ([RAISED, bar(17)], "failed"),
        ([RAISED, bar(30), *KILLS], "failed"),
        ([RAISED.replace("<module>", "_run_module_as_main"), bar(17)], "failed"),  # python -m
        # Only the launcher shows that the run died.
        ([RAISED, "the loop goes on", *map(bar, range(12, 17)), *KILLS], "failed"),
        # Programs that survived the exception:
        ([RAISED, bar(11), bar(17)], "unfinished"),
        ([RAISED, bar(17), "Saving model checkpoint to out/checkpoint-17"], "unfinished"),
        ([RAISED, bar(17), "{'loss': 1.2, 'epoch': 0.1}"], "unfinished"),
        ([HANDLED, bar(17)], "unfinished"),
        ([RAISED.replace("<module>", "train_batch"), bar(17)], "unfinished"),  # the loop prints the traceback
        ([RAISED, "the loop goes on", *map(bar, range(12, 17)), *KILLS, STOPPED], "interrupted"),
        ([RAISED, "the loop goes on", *map(bar, range(12, 32)), *KILLS], "unfinished"),
    ],
)
def test_bar_of_a_dead_program_shows_no_steps_after_its_exception(
    below: list[str], verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join([*BARS, *below]).encode() + b"\n"))
    assert reading.diagnose().verdict == verdict


FALLBACK = (
    "WARNING 03-02 10:00:00 [tokenizer.py:284] No tokenizer found in /adapters/a, using base model tokenizer"
    " instead. (Exception: Repo id must use alphanumeric chars, '-', '_' or '.': '/adapters/a'.)"
)
STATED = "using base model tokenizer instead"
LOGGED = "2026-03-02 10:00:00,000 - ERROR - rollout 3: Repo id must use alphanumeric chars: '/adapters/a'"
AGAIN = [line for at in range(0, 20, 5) for line in (*STEPS[at : at + 5], LOGGED)][:-1]


@pytest.mark.parametrize(
    ("lines", "ending", "verdict"),
    [
        ([line for step in STEPS[:20] for line in (FALLBACK, step)], None, "unfinished"),
        ([*STEPS[:20], FALLBACK], None, "unfinished"),
        ([*STEPS[:20], FALLBACK.replace("using", "use")], None, "failed"),  # advice, not a fallback
        ([*STEPS[:20], FALLBACK.replace("using", "try using")], None, "failed"),
        ([*STEPS[:20], FALLBACK.replace("instead", "instead may help")], None, "failed"),
        ([*STEPS[:20], FALLBACK.replace(STATED, "falling back to the base tokenizer")], None, "unfinished"),
        ([*STEPS[:20], FALLBACK.replace(STATED, "cannot fall back to the base tokenizer")], None, "failed"),
        ([*STEPS[:20], FALLBACK.replace(STATED, "consider falling back to the base one")], None, "failed"),
        ([*STEPS[:20], FALLBACK.replace("WARNING", "ERROR")], None, "failed"),
        ([*AGAIN, LOGGED, STEPS[20]], None, "degraded"),
        # A failure that was handled once can end the run the next time.
        ([*STEPS[:5], LOGGED, *STEPS[5:20], LOGGED, STEPS[20]], None, "failed"),
        ([*STEPS[:20], LOGGED, STEPS[20]], None, "failed"),
        ([*STEPS[:19], LOGGED, STEPS[19], LOGGED, STEPS[20]], None, "failed"),  # two lines of one failure
        ([*AGAIN, LOGGED], None, "failed"),
        ([*AGAIN, LOGGED, STEPS[20]], FAILED, "failed"),
        # An exception can end a run after the run survived the same exception.
        ([*(NAMED if line == LOGGED else line for line in AGAIN), NAMED, STEPS[20]], None, "failed"),
    ],
)
def test_survived_lines_and_fallbacks_are_no_failures(
    lines: list[str], ending: Ending | None, verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join(lines).encode() + b"\n"))
    assert reading.diagnose(ending).verdict == verdict


@pytest.mark.parametrize(("hour", "verdict"), [("07", "unfinished"), ("09", "failed")])
def test_launcher_ends_only_the_steps_before_it(
    hour: str, verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    """The launcher of a failed start can have its own log. The time shows whether steps followed."""
    steps = [f"2026-05-11 08:{number:02}:00,000 step {number} loss=0.5" for number in range(20)]
    killed = f"[2026-05-11 {hour}:14:02,118] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4171"
    reading = RunReading(catalogue, matcher)
    for name, lines in (("launcher.log", [killed]), ("rank0.log", [*steps[:12], RAISED, *steps[12:]])):
        reading.feed(LineReader(name).feed("\n".join([*lines, ""]).encode()))
    assert reading.diagnose().verdict == verdict


@pytest.mark.parametrize("above", [6, 20])
def test_steps_of_other_ranks_below_the_launcher_do_not_count(
    above: int, catalogue: Catalogue, matcher: Matcher
) -> None:
    """Ranks write to a file in any order."""
    zero, one = ([f"[rank{rank}]: step {step} loss=0.5" for step in range(20)] for rank in (0, 1))
    error = [f"[rank0]: {line}" for line in RAISED.splitlines()]
    lines = [*one[:above], *zero[:12], *error, *zero[12:18], *KILLS, *one[above:], ""]
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join(lines).encode()))
    assert reading.diagnose().verdict == "failed"


@pytest.mark.parametrize(
    ("last", "every", "at", "cause"),
    [
        (NAMED, 1, 10, "cuda-oom"),
        (NAMED, 10, 18, "cuda-oom"),
        ("ValueError: no such split", 1, 10, "ValueError"),
        (NAMED, 1, 2, ""),  # a failure of the other program
    ],
)
def test_steps_of_another_program_prove_no_recovery(
    last: str, every: int, at: int, cause: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    """Two programs in the background of a script print to the same output, and one of them fails."""
    raised = f'Traceback (most recent call last):\n  File "/srv/train.py", line 7, in <module>\n{last}'
    steps = [f"step {number * every}/1000 loss {2 / number:.3f}" for number in range(1, 31)]
    lines = [*steps[: 10 if every == 1 else 1], raised, *steps[10 if every == 1 else 1 :]]
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("out").feed("\n".join(lines).encode() + b"\n"))
    found = reading.diagnose(Ending("failed", 0, crash=Crash(0, 4711, 1, step=at)))
    named = [found.primary.rule] if found.primary else [one.exception for one in found.unknown]
    assert found.verdict in ("failed", "unknown-failure") and named == [cause] * bool(cause)


@pytest.mark.parametrize(
    ("step", "time", "every", "expected"),
    [
        (96, None, 1, True),
        (100, None, 1, True),
        (101, None, 1, False),  # the failure came after the end of the process
        (80, None, 1, False),
        (80, None, 50, True),
        (None, None, 1, False),
        (150, 990.0, 1, True),  # the other program is ahead
        (150, 900.0, 1, False),  # an earlier failure, which the program handled
        (100, 900.0, 50, False),  # the log shows few steps, but its times are exact
        (150, 1010.0, 1, False),
    ],
)
def test_failure_that_ended_a_program_is_near_its_end(
    step: int | None, time: float | None, every: int, expected: bool
) -> None:
    assert Crash(0, 7, 1, step=100, time=1000.0).is_at(step, time, every) is expected


def test_failure_of_one_program_is_fatal_while_another_one_continues(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("out").feed("\n".join([*STEPS[:11], NAMED, *STEPS[11:29]]).encode() + b"\n"))
    assert [finding.harm for finding in reading.diagnose(now=1e9).findings] == ["harmless"]
    crash = Crash(0, 4711, 1, step=11)
    found = reading.diagnose(now=1e9, failed_program=crash)
    assert [finding.harm for finding in found.findings] == ["fatal"]


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ([*STEPS[:-1], NAMED, STEPS[-1]], "1 step followed."),
        ([*STEPS[:20], NAMED, *STEPS[20:]], "10 steps followed."),
        ([*STEPS[:4], NAMED, *STEPS[4:-1], NAMED, STEPS[-1]], "1 step followed its last message."),
        ([*STEPS[:4], NAMED, *STEPS[4:-2], NAMED, *STEPS[-2:]], "2 steps followed its last message."),
    ],
)
def test_note_names_the_message_after_which_it_counts_steps(
    lines: list[str], note: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    """A report places a finding at its first message."""
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join(lines).encode() + b"\n"))
    (found,) = rendered(reading.diagnose()).findings
    assert found.note == f"This failure did not end the run: {note}"


@pytest.mark.parametrize(
    "last",
    [
        "FloatingPointError: gradients are Nan/Inf",
        "RuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output.",
    ],
)
def test_raised_exception_is_fatal_despite_other_harm(
    last: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    raised = f'Traceback (most recent call last):\n  File "/srv/train.py", line 7, in <module>\n{last}'
    norm = "step 20/30 loss 0.200 grad_norm nan"
    for lines, verdict in (
        ([*STEPS[:20], raised], "failed"),
        ([*STEPS[:19], norm, raised], "failed"),
        ([*STEPS[:20], raised, *STEPS[20:24]], "unfinished"),
        ([*STEPS[:19], norm], "degraded"),
    ):
        reading = RunReading(catalogue, matcher)
        reading.feed(LineReader("train.log").feed("\n".join(lines).encode() + b"\n"))
        found = rendered(reading.diagnose())
        assert found.verdict == verdict
        assert [finding.rule for finding in found.findings] == ["grad-norm-nan"]
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join([*STEPS[:20], raised]).encode() + b"\n"))
    assert reading.diagnose(ending=FINISHED).verdict == "degraded"


def test_line_with_an_older_time_below_steps_is_later(catalogue: Catalogue, matcher: Matcher) -> None:
    steps = [f"[2026-03-02 09:41:{n:02d},118] [INFO] {line}" for n, line in enumerate(STEPS[:20])]
    late = f"[2026-03-02 01:41:21,002] [ERROR] {NAMED}"  # by a logger that writes UTC
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join([*steps, late]).encode() + b"\n"))
    assert reading.diagnose().verdict == "failed"


def every(steps: int, count: int, nan: set[int]) -> list[str]:
    """Losses that each represent this number of steps, some of them NaN."""
    losses = {n: "nan" if n in nan else f"{2 / n + 0.1:.3f}" for n in range(1, count + 1)}
    return [f"step {n * steps}/99999 loss: {loss}" for n, loss in losses.items()]


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (every(50, 6, {3}), "degraded"),  # 150 steps, and no more than 3 losses
        (every(50, 6, {1, 2}), "degraded"),
        (every(50, 60, {3}), "unfinished"),
        (every(1, 60, {3}), "unfinished"),
        (every(50, 60, {3, 9, 15, 21}), "degraded"),  # again and again
        (every(50, 6, {5, 6}), "failed"),
    ],
    ids=["few losses since", "the first ones", "long ago", "long ago, each step", "often", "to the end"],
)
def test_nan_loss_lasts_until_finite_losses_follow(
    lines: list[str], verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join(lines).encode() + b"\n"))
    diagnosis = rendered(reading.diagnose())
    assert diagnosis.verdict == verdict
    assert [finding.rule for finding in diagnosis.findings] == ["loss-nan"]


@pytest.mark.parametrize(
    ("losses", "rank", "step"),
    [
        ({0: {*range(26, 61)}, 2: {*range(20, 61)}}, 2, 20),
        ({0: {*range(20, 61)}, 2: {*range(20, 61)}}, 0, 20),
        ({0: {*range(26, 61)}, 2: {7}}, 0, 26),  # the loss of rank 2 became finite again
        ({0: {*range(26, 61)}, 2: {7, *range(24, 61)}}, 2, 24),
    ],
)
def test_rank_with_the_first_lasting_nan_loss_is_named(
    losses: dict[int, set[int]], rank: int, step: int, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    for each in range(3):
        reader = LineReader(f"rank{each}.log", each)
        reading.feed(reader.feed("\n".join(every(1, 60, losses.get(each, set()))).encode() + b"\n"))
    primary = reading.diagnose().primary
    assert primary is not None and primary.rule == "loss-nan"
    assert (primary.rank, primary.step) == (rank, step)


OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768"


def metrics(first: int, last: int, loss: str = "2.5", norm: str = "1.0") -> list[str]:
    return [f"{{'loss': {loss}, 'grad_norm': {norm}, 'step': {n}}}" for n in range(first, last)]


@pytest.mark.parametrize(
    ("lines", "harm"),
    [
        ([*metrics(1, 200), *[OVERFLOW] * 12, *metrics(200, 230, "0.0", "nan")], "degrading"),
        ([*metrics(1, 200), *[OVERFLOW] * 12, *metrics(200, 202), *metrics(202, 230, "nan")], "degrading"),
        ([*metrics(1, 200), *[OVERFLOW] * 12, *metrics(200, 280), *metrics(280, 290, "nan")], "harmless"),
        ([*metrics(1, 200), *[OVERFLOW] * 12, *metrics(200, 230)], "harmless"),
    ],
)
def test_nan_steps_do_not_prove_recovery(
    lines: list[str], harm: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join(lines).encode() + b"\n"))
    (found,) = [
        finding
        for finding in rendered(reading.diagnose()).findings
        if finding.rule == "fp16-overflow-every-step"
    ]
    assert found.harm == harm and ("normal steps followed" in found.note) == (harm == "harmless")


SRUN = "srun: error: node17: task 0: Exited with exit code 1"
OOM_KILL = "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been"
OOM_KILL += " OOM Killed."
LONG = [f"step {n}/500 loss {2 / n + 0.1:.3f}" for n in range(1, 501)]


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([SRUN, *LONG], "finished"),  # a command of the batch script before the training
        ([SRUN, *STEPS], "unknown-failure"),  # what a buffer held back
        ([OOM_KILL, *STEPS], "failed"),
        ([*STEPS[:2], SRUN, *STEPS[2:]], "unknown-failure"),  # another task of the same step, perhaps
    ],
)
def test_launcher_message_before_all_steps_is_not_fatal(
    lines: list[str], verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    labelled = "".join(f"{line if line in (SRUN, OOM_KILL) else f'[rank0]: {line}'}\n" for line in lines)
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("slurm-17.out").feed(labelled.encode()))
    assert reading.diagnose().verdict == verdict


def test_failure_of_another_log_is_over_if_its_log_goes_on_before_further_steps(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    """A traceback has no time, but a restart below it has one, and rank 0 takes steps after it."""
    reading = RunReading(catalogue, matcher)
    again = [f"2026-11-20 10:{n:02}:00 {step}" for n, step in enumerate(STEPS)]
    crash = ["2026-11-20 08:00:00 start", *[f"[rank1]: {NAMED}"] * 4, "2026-11-20 09:59:00 start"]
    for rank, lines in enumerate(([again[0].replace(" 10:", " 08:"), *again], crash)):
        reading.feed(LineReader(f"rank{rank}.log", rank).feed("\n".join(lines).encode() + b"\n"))
    found = rendered(reading.diagnose())
    assert (found.verdict, [finding.harm for finding in found.findings]) == ("finished", ["harmless"])
    reading = RunReading(catalogue, matcher)  # the restart does not appear in its log
    for rank, lines in enumerate((again, crash[:-1])):
        reading.feed(LineReader(f"rank{rank}.log", rank).feed("\n".join(lines).encode() + b"\n"))
    assert reading.diagnose().verdict == "failed"


def trials(*counts: int, every: int = 5) -> list[str]:
    """Trials of a sweep, each with this number of printed losses."""
    return [f"step {n * every}/400 loss {2 / n + 0.5:.3f}" for count in counts for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("lines", "verdict", "advice"),
    [
        ([*trials(16), "loss is inf, pruning this trial", *trials(16)], "unfinished", ""),
        ([*trials(16), "step 85/400 loss nan", *trials(16)], "unfinished", ""),
        ([*trials(16), "loss is inf, pruning this trial", *trials(5)], "degraded", "The loss was NaN"),
        ([*trials(16), "step 85/400 loss nan", *trials(30)[17:]], "degraded", "The loss was NaN"),
        ([*trials(16), *(f"step {n}/400 loss nan" for n in (85, 90))], "failed", "The loss has been NaN"),
    ],
    ids=["next trial", "next trial after steps", "few losses since", "same trial", "to the end"],
)
def test_nan_loss_of_an_earlier_trial_is_over(
    lines: list[str], verdict: str, advice: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join(lines).encode() + b"\n"))
    diagnosis = rendered(reading.diagnose())
    assert diagnosis.verdict == verdict
    assert not advice or (diagnosis.primary is not None and diagnosis.primary.fixes[0].startswith(advice))


def scaled(bad: set[int], overflows: set[int], *, before: bool = True) -> list[str]:
    """Steps of fp16 training, some with an infinite norm, and some with an overflow in the line before."""
    lines = []
    for n in range(1, 201):
        norm = "inf" if n in bad else f"{1 / n:.3f}"
        step = f"step {n}/200 loss {2 / n + 0.1:.3f} grad_norm {norm}"
        overflow = [OVERFLOW] if n in overflows else []
        lines += [*overflow, step] if before else [step, *overflow]
    return lines


@pytest.mark.parametrize(
    ("bad", "overflows", "verdict"),
    [
        ({*range(1, 12), 70, 140}, {*range(1, 12), 70, 140}, "finished"),
        ({40, 41, 90, 140}, {3, 40, 41, 90, 140}, "finished"),
        ({*range(100, 112)}, {3}, "degraded"),  # other steps than those of the overflow
        ({*range(100, 112)}, set(), "degraded"),  # no loss scaler
    ],
    ids=["search and later", "later", "elsewhere", "bf16"],
)
@pytest.mark.parametrize("before", [True, False])
def test_infinite_norm_of_a_skipped_step_is_harmless(
    bad: set[int], overflows: set[int], verdict: str, before: bool, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    lines = scaled(bad, overflows, before=before)
    reading.feed(LineReader("train.log").feed("\n".join(lines).encode() + b"\n"))
    assert reading.diagnose().verdict == verdict
