"""Exceptions that programs handle as often as they end by them: only the following lines show which."""

from __future__ import annotations

import pytest
from smallruns import FAILED, FINISHED, killed_by

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.json import schema_1_verdict

STEPS = [f"step {n}/30 loss {2 / n:.4f}" for n in range(1, 31)]
BROKEN = """\
Traceback (most recent call last):
  File "/w/rewards.py", line 12, in parse
    answer = json.loads(text)
json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 30 (char 29)"""
OUTPUT = """\
Exception in thread Thread-2 (_readerthread):
Traceback (most recent call last):
  File "C:\\Python311\\Lib\\threading.py", line 982, in run
    self._target(*self._args, **self._kwargs)
  File "C:\\Python311\\Lib\\subprocess.py", line 1599, in _readerthread
    buffer.append(fh.read())
  File "<frozen codecs>", line 322, in decode
UnicodeDecodeError: 'utf-8' codec can't decode byte 0xad in position 7: invalid start byte"""
OTHER = BROKEN.rpartition("\n")[0] + "\nZeroDivisionError: division by zero"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RULE = "text-undecodable"
MISSING = """\
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/xformers/__init__.py", line 57, in _is_triton_available
    import triton
ModuleNotFoundError: No module named 'triton'"""
UNBUILT = "  ERROR: Failed building wheel for flash-attn"
ABSENT = "OSError: out/final does not appear to have a file named config.json."
DIED = {"ending": FAILED}
TRACE = ["Traceback (most recent call last):"]


def diagnosed(catalogue: Catalogue, matcher: Matcher, lines: list[str], **known: object) -> Diagnosis:
    reading = RunReading(catalogue, matcher)
    reading.feed(lines_of("\n".join(lines)))
    return rendered(reading.diagnose(**known))  # type: ignore[arg-type]


def harm_of(diagnosis: Diagnosis) -> str:
    return next(finding.harm for finding in diagnosis.findings if finding.rule == RULE)


@pytest.mark.parametrize(
    ("lines", "known", "verdict", "harm"),
    [
        ([BROKEN], {}, "failed", "fatal"),
        ([*STEPS[:20], BROKEN], DIED, "failed", "fatal"),
        ([*STEPS[:20], BROKEN], {"now": 1e9}, "healthy", "by-progress"),
        ([*STEPS[:20], BROKEN], {"now": 1e9, "stalled": True}, "stalled", "fatal"),
        ([*STEPS[:20], BROKEN, *STEPS[20:24]], {}, "healthy", "harmless"),
        ([line for step in STEPS[:20] for line in (step, BROKEN)] + STEPS[20:24], {}, "healthy", "harmless"),
        ([*STEPS, BROKEN], {}, "healthy", "harmless"),
        # in a thread that reads a child's output, one more step is enough: the training does not wait for it
        ([*STEPS[:20], OUTPUT, *STEPS[20:21]], {}, "healthy", "harmless"),
        ([*STEPS[:20], OUTPUT], {}, "failed", "fatal"),
        # another thread may fetch batches, and one batch was ready
        ([*STEPS[:20], "Exception in thread Thread-2:\n" + BROKEN, *STEPS[20:21]], {}, "failed", "fatal"),
        ([*STEPS, BROKEN], DIED, "failed", "fatal"),
        ([*STEPS[:20], BROKEN], {"ending": FINISHED}, "healthy", "by-progress"),
    ],
)
def test_following_lines_show_whether_an_exception_was_fatal(
    lines: list[str],
    known: dict[str, object],
    verdict: str,
    harm: str,
    catalogue: Catalogue,
    matcher: Matcher,
) -> None:
    diagnosis = diagnosed(catalogue, matcher, lines, **known)
    assert (schema_1_verdict(diagnosis), harm_of(diagnosis)) == (verdict, harm)
    assert (diagnosis.primary is not None and diagnosis.primary.rule == RULE) == (harm == "fatal")


STAMP = "ERROR:2026-03-02 10:00:0{},691:"
UNREAD = [
    "Traceback (most recent call last):",
    '  File "/w/env.py", line 470, in update_state',
    "    action, x, y = extract(text)",
    "TypeError: cannot unpack non-iterable NoneType object",
]
AFTER = [STAMP.format(1) + "No action in the answer to item 7"]
WORK = [f"You're using a fast tokenizer in worker {number}" for number in range(7)]
END = [f"Shutting down worker {number}" for number in range(7)]
HEADED = [STAMP.format(0) + UNREAD[0], *UNREAD[1:]]
KEY_ERROR = [*HEADED[:-1], "KeyError: 'action'", *AFTER]


def worker(pid: int, *lines: str) -> list[str]:
    return [f"(EnvWorker pid={pid}) {line}" for line in lines]


@pytest.mark.parametrize(
    ("lines", "known", "verdict"),
    [
        ([*worker(7, *HEADED, *AFTER, WORK[0]), *worker(8, *WORK[1:])], {}, "unfinished"),
        ([*worker(7, *HEADED, *AFTER, WORK[0]), *worker(8, *WORK[1:])], DIED, "unknown-failure"),
        # The processes that continue are different processes.
        ([*worker(7, *HEADED, *AFTER), *worker(8, *WORK)], {}, "unknown-failure"),
        ([*worker(7, *HEADED, *AFTER, END[0]), *worker(8, *WORK)], {}, "unknown-failure"),
        ([*HEADED, *AFTER, *worker(8, *WORK)], {}, "unknown-failure"),
        # A script that continues after its program also prints lines without a process.
        ([*HEADED, *AFTER, *WORK], {}, "unknown-failure"),
        (worker(7, *HEADED, *AFTER), {}, "unknown-failure"),
        (worker(7, *HEADED, *AFTER, *WORK[:3]), {}, "unknown-failure"),
        (worker(7, *HEADED, *AFTER, *END), {}, "unknown-failure"),
        (worker(7, *HEADED, *AFTER, *WORK, *HEADED), {}, "unknown-failure"),
        (worker(7, *HEADED, *AFTER, *WORK, *HEADED, *AFTER), {}, "unknown-failure"),
        (worker(7, *HEADED, *AFTER, *WORK, *HEADED, *AFTER, *WORK), {}, "unfinished"),
        # Python itself printed the traceback.
        (worker(7, *UNREAD, *AFTER, *WORK), {}, "unknown-failure"),
        # a collector's prefix
        (worker(7, *(STAMP.format(0) + line for line in UNREAD), *WORK), {}, "unknown-failure"),
        # The prefix of a rank also identifies a process.
        ([f"[rank3]: {line}" for line in (*HEADED, *AFTER, *WORK)], {}, "unfinished"),
        ([f"[rank3]: {line}" for line in (*HEADED, *AFTER)] + WORK, {}, "unknown-failure"),
    ],
)
def test_exception_that_a_logger_printed_ends_no_process_that_continues(
    lines: list[str], known: dict[str, object], verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(LineReader("train.log").feed("\n".join([STEPS[0], *lines]).encode() + b"\n"))
    diagnosis = rendered(reading.diagnose(**known))  # type: ignore[arg-type]
    assert diagnosis.verdict == verdict
    assert [unknown.exception for unknown in diagnosis.unknown] == ["TypeError"]


def test_process_that_continues_survived_all_exceptions_that_its_logger_printed(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = RunReading(catalogue, matcher)
    lines = [STEPS[0], *worker(7, *HEADED, *KEY_ERROR, *WORK)]
    reading.feed(LineReader("train.log").feed("\n".join(lines).encode() + b"\n"))
    diagnosis = reading.diagnose()
    assert diagnosis.verdict == "unfinished"
    assert {unknown.exception for unknown in diagnosis.unknown} == {"TypeError", "KeyError"}


def test_log_that_ends_at_an_exception_is_less_certain(catalogue: Catalogue, matcher: Matcher) -> None:
    open_end = diagnosed(catalogue, matcher, [*STEPS[:20], BROKEN]).primary
    died = diagnosed(catalogue, matcher, [*STEPS[:20], BROKEN], **DIED).primary
    assert open_end is not None and died is not None
    assert open_end.confidence <= 0.6 < died.confidence


def test_later_fatal_error_is_the_cause(catalogue: Catalogue, matcher: Matcher) -> None:
    known = diagnosed(catalogue, matcher, [*STEPS[:20], BROKEN, MEMORY], **DIED)
    assert known.primary is not None and known.primary.rule == "cuda-oom" and harm_of(known) == "by-progress"
    unknown = diagnosed(catalogue, matcher, [*STEPS[:20], BROKEN, OTHER], **DIED)
    assert unknown.primary is None and unknown.unknown[0].exception == "ZeroDivisionError"
    killed = diagnosed(catalogue, matcher, [*STEPS[:20], BROKEN], ending=killed_by("SIGKILL"))
    assert harm_of(killed) == "by-progress"


@pytest.mark.parametrize(
    ("first", "second", "error", "cause"),
    [
        ("/w/train.py", "/w/evaluate.py", ABSENT, "ZeroDivisionError"),
        ("/w/train.py", "/w/train.py", ABSENT, "model-path-wrong"),
        # a child process of the same script
        ("<string>", "/w/train.py", ABSENT, "model-path-wrong"),
        ("/w/train.py", "<string>", ABSENT, "model-path-wrong"),
        # a failed check or actor before it does not explain a failure of another kind
        ("/w/check.py", "/w/train.py", MEMORY, "cuda-oom"),
        (
            "/w/check.py",
            "/w/train.py",
            "ModuleNotFoundError: No module named 'flash_attn'",
            "flash-attn-missing",
        ),
    ],
)
def test_missing_output_of_a_failed_script_is_not_the_cause(
    catalogue: Catalogue, matcher: Matcher, first: str, second: str, error: str, cause: str
) -> None:
    def ended(script: str, error: str) -> str:
        return (
            f'Traceback (most recent call last):\n  File "{script}", line 9, in <module>\n    main()\n{error}'
        )

    lines = [*STEPS[:20], ended(first, "ZeroDivisionError: division by zero"), ended(second, error)]
    diagnosis = diagnosed(catalogue, matcher, lines)
    named = diagnosis.primary.rule if diagnosis.primary is not None else diagnosis.unknown[0].exception
    assert named == cause


def test_invalid_command_line_is_the_cause_before_a_stopped_launcher(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    usage = "usage: train.py [-h] [--lr LR]\ntrain.py: error: argument --lr: expected one argument"
    waited = """\
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
KeyboardInterrupt"""
    diagnosis = diagnosed(catalogue, matcher, ["Loading the data", usage, waited])
    assert diagnosis.verdict == "failed"
    assert diagnosis.primary is not None and diagnosis.primary.rule == "config-argparse-error"


def test_tracker_exception_in_the_main_thread_is_fatal_without_later_steps(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    """The program's own calls above it may be cut off."""
    cut = """\
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/visdom/__init__.py", line 7, in send
    send()
requests.exceptions.ConnectionError: no answer from localhost:8097"""
    verdicts = [
        diagnosed(catalogue, matcher, [*STEPS[:20], cut, *STEPS[20:later]]).verdict for later in (20, 24)
    ]
    assert verdicts == ["unknown-failure", "unfinished"]


def test_failed_batch_thread_is_survived_after_two_steps(catalogue: Catalogue, matcher: Matcher) -> None:
    dies = f"Exception in thread Thread-3 (prefetch):\n{OTHER}"
    verdicts = [
        diagnosed(catalogue, matcher, [*STEPS[:20], dies, *STEPS[20 : 20 + after]]).verdict
        for after in (0, 1, 2)
    ]
    assert verdicts == ["unknown-failure", "unknown-failure", "unfinished"]


@pytest.mark.parametrize(
    ("lines", "verdict", "harm"),
    [
        ([MISSING], "failed", "fatal"),
        ([MISSING, STEPS[0]], "unfinished", "harmless"),
        ([UNBUILT], "failed", "fatal"),
        ([UNBUILT, STEPS[0]], "unfinished", "harmless"),
        ([UNBUILT, "Loading the model", MEMORY], "failed", "by-progress"),
        ([UNBUILT, "Loading the model", OTHER], "unknown-failure", "by-progress"),
        ([UNBUILT, STEPS[0], OTHER], "unknown-failure", "harmless"),
    ],
)
def test_optional_library_does_not_end_a_run_with_steps(
    lines: list[str], verdict: str, harm: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    diagnosis = diagnosed(catalogue, matcher, lines)
    rules = ("package-not-installed", "extension-build-failed")
    missing = next(finding for finding in diagnosis.findings if finding.rule in rules)
    assert (diagnosis.verdict, missing.harm) == (verdict, harm)


HALTED = "ERROR: the policy collapsed. Halting."


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([*STEPS[:20], HALTED, "model saved"], "failed"),
        ([*STEPS[:20], HALTED, *STEPS[20:23]], "unfinished"),
        ([*STEPS, HALTED], "finished"),
    ],
)
def test_program_that_stops_itself_fails_unless_it_continued(
    lines: list[str], verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    diagnosis = diagnosed(catalogue, matcher, lines)
    assert diagnosis.verdict == verdict
    assert (diagnosis.primary is not None) == (verdict == "failed")


ENDED = "training finished"


@pytest.mark.parametrize(
    ("lines", "known", "verdict"),
    [
        ([*STEPS[:10], OTHER, *STEPS[10:], OTHER, ENDED], {}, "finished"),
        ([*STEPS[:10], OTHER, *STEPS[10:], OTHER], {}, "finished"),
        ([*STEPS, OTHER, ENDED], {}, "unknown-failure"),  # a script can print this after a failure
        ([*STEPS, OTHER], {}, "unknown-failure"),
        ([*STEPS, OTHER, "job done"], {}, "unknown-failure"),
        ([*STEPS, ENDED, OTHER], {}, "unknown-failure"),
        ([*STEPS[:10], OTHER, *STEPS[10:20], OTHER], {}, "unknown-failure"),
        ([*STEPS[:20], OTHER, ENDED], {}, "unknown-failure"),  # a script can print this after a failure
        ([*STEPS[:10], OTHER, *STEPS[10:], OTHER, ENDED], DIED, "unknown-failure"),
    ],
)
def test_exception_that_a_finished_training_survived_did_not_end_the_run(
    lines: list[str], known: dict[str, object], verdict: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    diagnosis = diagnosed(catalogue, matcher, lines, **known)
    assert diagnosis.verdict == verdict
    assert [exception.exception for exception in diagnosis.unknown] == ["ZeroDivisionError"]


@pytest.mark.parametrize("file", ["<string>", "<stdin>"])
def test_check_in_a_start_script_is_no_failure_while_the_script_runs(
    catalogue: Catalogue, matcher: Matcher, file: str
) -> None:
    """``python -c "import flash_attn" || …`` is a check, but ``set -e`` can also make it the end."""
    lines = [
        *TRACE,
        f'  File "{file}", line 1, in <module>',
        "ModuleNotFoundError: No module named 'flash_attn'",
    ]
    running = diagnosed(catalogue, matcher, lines, now=1e9)
    assert [finding.harm for finding in running.findings] == ["harmless"]
    assert diagnosed(catalogue, matcher, lines, ending=FAILED).primary is not None
    program = [*TRACE, '  File "/w/train.py", line 1, in <module>', lines[-1]]
    assert diagnosed(catalogue, matcher, program, now=1e9).primary is not None


THREAD = """\
Exception in thread Thread-1 (prefetch):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 982, in run
    self._target(*self._args, **self._kwargs)
  File "/w/data.py", line 8, in prefetch
    raise {error}
{error}"""


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: cannot decode record 110",
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ],
)
def test_end_of_a_thread_explains_a_stall_after_the_last_prepared_batches(
    catalogue: Catalogue, matcher: Matcher, error: str
) -> None:
    lines = [*STEPS[:10], THREAD.format(error=error), *STEPS[10:16]]
    stalled = diagnosed(catalogue, matcher, lines, now=1e9, stalled=True, waited=31.0, threshold=30.0)
    named = stalled.primary.rule if stalled.primary is not None else stalled.unknown[0].message
    assert named in (RULE, error.partition(": ")[2]) and stalled.verdict != "healthy"
    running = diagnosed(catalogue, matcher, lines, now=1e9)
    assert (running.verdict, running.primary) == ("healthy", None)


def test_end_of_a_thread_of_a_library_does_not_explain_a_stall(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    """For example, transformers converts weights in a thread, which fails on a node without a network."""
    path = "/env/lib/python3.11/site-packages/transformers/safetensors_conversion.py"
    thread = THREAD.replace("/w/data.py", path).format(error="ConnectionError: no route to host")
    known = {"now": 1e9, "stalled": True, "waited": 31.0, "threshold": 30.0}
    stalled = diagnosed(catalogue, matcher, [*thread.splitlines(), *STEPS[:10]], **known)
    assert stalled.primary is not None and stalled.primary.rule == "silent-hang-no-error"
