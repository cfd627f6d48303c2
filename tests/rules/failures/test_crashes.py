"""Ends without a Python traceback, as unknown failures."""

from __future__ import annotations

import json

import pytest

from stallwatch_rules.failures.raised import own_frame
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, UnknownException

EMPTY = Catalogue.of([])


def diagnosed(text: str) -> Diagnosis:
    reading = RunReading(EMPTY, Matcher(EMPTY))
    reading.feed(lines_of(text))
    return rendered(reading.diagnose())


def only(text: str) -> UnknownException:
    diagnosis = diagnosed(text)
    assert diagnosis.verdict == "unknown-failure"
    (unknown,) = diagnosis.unknown
    return unknown


CPP = """\
terminate called after throwing an instance of 'c10::Error'
  what():  the allocator lost block 77
Exception raised from release at ../c10/core/pool.cpp:12 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f12 in /opt/torch/lib/libc10.so)
frame #1: pool::release(char const*) + 0x64 (0x7f13 in /opt/mine/libpool.so)
"""
FAULT = """\
Fatal Python error: the lock is held by nobody
Python runtime state: initialized

Current thread 0x00007f12 (most recent call first):
  File "/opt/env/lib/python3.11/site-packages/ops/run.py", line 88 in run
  File "/home/ada/train.py", line 12 in main

Thread 0x00007f13 (most recent call first):
  File "/home/ada/other.py", line 1 in wait
"""


def test_cpp_exception_has_message_and_stack() -> None:
    unknown = only(CPP)
    assert (unknown.exception, unknown.message) == ("c10::Error", "the allocator lost block 77")
    assert unknown.frames == [
        "pool::release (/opt/mine/libpool.so)",
        "c10::Error::Error (/opt/torch/lib/libc10.so)",
    ]


def test_fatal_python_error_has_frames() -> None:
    unknown = only(FAULT)
    assert (unknown.exception, unknown.message) == ("Fatal Python error", "the lock is held by nobody")
    assert unknown.frames == [
        "~/train.py:12 in main",
        "/opt/env/lib/python3.11/site-packages/ops/run.py:88 in run",
    ]


@pytest.mark.parametrize(
    ("text", "exception", "message"),
    [
        ("*** SIGFPE received at time=1763683200 on cpu 3 ***\nPC: @ 0x7f  (unknown)  f()\n", "SIGFPE", ""),
        ("[n1:32] *** Process received signal ***\n[n1:32] Signal: Hangup (1)\n", "signal", "Hangup (1)"),
        ("terminate called without an active exception\n", "terminate called", "without an active exception"),
        (
            "libc++abi: terminating due to uncaught exception of type std::bad_cast: no cast\n",
            "std::bad_cast",
            "no cast",
        ),
        (
            "F0102 10:00:00.123456 77 store.cc:9] Check failed: a == b (1 vs. 2)\n",
            "Check failed",
            "a == b (1 vs. 2)",
        ),
        (
            "[2026-07-06 07:14:27,052 C 291 297] store.cc:219:  An unexpected system state has occurred."
            " Check failed: data != nullptr \n",
            "Check failed",
            "data != nullptr",
        ),
        (
            "EK0007: [PID: 4711] 2026-01-02-10:00:00.123.456 The tiling key is not found.\n"
            "        Solution: Update the package.\n        TraceBack (most recent call last):\n",
            "EK0007",
            "The tiling key is not found.",
        ),
        (
            "2026-01-02 10:00:00.1: F tensorflow/core/platform/env.cc:73] the pool has no thread left\n",
            "F",
            "the pool has no thread left",
        ),
        (
            "2026-01-02 10:00:00.1: F tensorflow/core/platform/env.cc:73] Check failed: r == 0 (11 vs. 0)\n",
            "Check failed",
            "r == 0 (11 vs. 0)",
        ),
        (
            "Error in fit(model, x) : \n  the response has 3 levels\nExecution halted\n",
            "Error in fit(model, x)",
            "the response has 3 levels",
        ),
        ("panic: index out of range [3]\n\ngoroutine 1 [running]:\n", "panic", "index out of range [3]"),
    ],
)
def test_other_crash_messages_are_recognized(text: str, exception: str, message: str) -> None:
    unknown = only(text)
    assert (unknown.exception, unknown.message) == (exception, message)


@pytest.mark.parametrize(
    ("text", "exception", "message", "frame"),
    [
        (
            "/opt/bin/luajit: /opt/share/lua/5.1/nn/Container.lua:67: \nIn 3 module of nn.Sequential:\n"
            "/opt/share/lua/5.1/nn/Linear.lua:66: size mismatch, m1: [64 x 100], m2: [128 x 10]\n"
            "stack traceback:\n\t[C]: in function 'addmm'\n"
            "\t/opt/share/lua/5.1/nn/Linear.lua:66: in function 'updateOutput'\n"
            "\ttrain.lua:88: in main chunk\n",
            "lua",
            "In 3 module of nn.Sequential: "
            "/opt/share/lua/5.1/nn/Linear.lua:66: size mismatch, m1: [64 x 100], m2: [128 x 10]",
            "train.lua:88 in main chunk",
        ),
        (
            "Error using vertcat\nThe dimensions are not consistent.\n\nError in trainNet (line 45)\n",
            "Error using vertcat",
            "The dimensions are not consistent.",
            "trainNet:45",
        ),
        (
            "thread 'main' panicked at src/model.rs:42:13:\nno label 12\nnote: run with `RUST_BACKTRACE=1`\n",
            "panicked",
            "no label 12",
            "src/model.rs:42",
        ),
        (
            'Exception in thread "main" org.nd4j.ShapeException: [32,10] vs [32,1]\n'
            "\tat com.example.Train.fit(Train.java:42)\n\tat com.example.Train.main(Train.java:9)\n",
            "org.nd4j.ShapeException",
            "[32,10] vs [32,1]",
            "Train.java:42 in com.example.Train.fit",
        ),
        (
            "ERROR: LoadError: DimensionMismatch: A has 100 columns\nStacktrace:\n [1] dense(x::Vector)\n"
            "   @ Main ~/proj/model.jl:14\n",
            "LoadError",
            "DimensionMismatch: A has 100 columns",
            "~/proj/model.jl:14",
        ),
    ],
)
def test_errors_of_other_languages_are_recognized(
    text: str, exception: str, message: str, frame: str
) -> None:
    unknown = only("epoch 1 loss 0.93\n" + text)
    assert (unknown.exception, unknown.message) == (exception, message)
    assert own_frame(unknown.frames) == frame


@pytest.mark.parametrize(
    "crash",
    [
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no label 12\n",
        "F0102 10:00:00.123456 77 store.cc:9] Check failed: a == b (1 vs. 2)\n*** Check failure ***\n",
    ],
)
def test_reason_of_an_abort_is_the_cause(crash: str, catalogue: Catalogue) -> None:
    reading = RunReading(catalogue, Matcher(catalogue))
    reading.feed(lines_of("step 1 loss 0.5\nstep 2 loss 0.4\n" + crash + "Aborted (core dumped)\n"))
    diagnosis = reading.diagnose()
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    assert diagnosis.unknown[0].message in ("no label 12", "a == b (1 vs. 2)")


def test_ascend_block_in_an_exception_is_its_message() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: the call failed\n'
        "EK0007: [PID: 4711] 2026-01-02-10:00:00.123.456 The tiling key is not found.\n"
    )
    assert only(text).exception == "RuntimeError"


def test_error_file_of_torch_is_read() -> None:
    stack = 'Traceback (most recent call last):\n  File "train.py", line 9, in main\nValueError: 3 is odd\n'
    message = {"message": "ValueError: 3 is odd", "extraInfo": {"py_callstack": stack, "timestamp": "17"}}
    text = json.dumps({"message": message}) + "\n"
    unknown = only(text)
    assert (unknown.exception, unknown.message, unknown.frames) == (
        "ValueError",
        "3 is odd",
        ["train.py:9 in main"],
    )
    assert diagnosed(text[:80]).unknown == [], "a cut file is no exception"


def test_logged_warning_with_traceback_is_fatal_only_at_the_end() -> None:
    """vLLM logs a warning with a traceback if it cannot import an optional module, and continues."""
    lead = "WARNING 06-25 16:32:09 [import_utils.py:408] "
    found = (
        "Traceback (most recent call last):",
        '  File "/env/kernels.py", line 5, in load',
        "OddError: none",
    )
    text = "".join(f"{lead}{item}\n" for item in found)
    said = (
        "loading weights",
        "engine is up",
        "starting worker",
        "using torch",
        "capturing graphs",
        "routes: /",
    )
    goes_on = "".join(f"INFO 06-25 16:32:10 [core.py:7] {item}\n" for item in said)
    assert only(text).exception == "OddError"
    assert diagnosed(text + goes_on).verdict == "no-evidence"
    # Some collectors mark all of stderr as warnings, so lines about the end are no signs of life.
    assert only(text + "".join(f"{lead}{item}\n" for item in said)).exception == "OddError"
    steps = "".join(f"step {n}/60 loss {2 / n:.3f}\n" for n in range(1, 24))
    assert only(steps + text + goes_on).exception == "OddError", "a training goes on with steps"
    assert diagnosed(text + goes_on + steps).verdict == "unfinished"
    assert only((text + goes_on).replace("WARNING", "ERROR")).exception == "OddError"


def test_termination_signal_is_not_a_crash() -> None:
    """Ray's processes print a stack for such a signal, as for those that end them."""
    text = "*** {} received at time=1748300290 on cpu 8 ***\nPC: @     0x7a30bba98d71  (unknown)  (unknown)\n"
    assert diagnosed(text.format("SIGTERM")).verdict == "no-evidence"
    assert only(text.format("SIGSEGV")).exception == "SIGSEGV"


def test_crash_after_a_complete_training_is_not_a_failure() -> None:
    steps = "".join(f"{{'loss': 0.5, 'epoch': {i / 4}}}\n" for i in range(1, 9))
    end = "{'train_runtime': 12.5, 'train_samples_per_second': 4.0, 'train_loss': 0.5, 'epoch': 2.0}\n"
    assert diagnosed(steps + end + CPP).verdict == "finished"
    assert diagnosed(steps + CPP).verdict == "unknown-failure"


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: terminate called early, ignored\n",
        "the check failed for 3 of 10 files\n",
        "watching for *** SIG lines\n",
        "[PID: 4711] started\n",
        "Error in callback <function resume at 0x7f> (for pre_run_cell):\n",
        "Evaluation: 3 of 10 answers panic: no\n",
        "Exception in thread pool was ignored\n",
    ],
)
def test_text_similar_to_a_crash_is_ignored(text: str) -> None:
    assert diagnosed("step 1 loss 0.5\n" + text).unknown == []


def test_equal_crashes_of_ranks_are_folded() -> None:
    text = "".join(
        f"[rank{rank}]: terminate called after throwing an instance of 'std::logic_error'\n"
        f"[rank{rank}]:   what():  rank {rank} lost /data/part-{rank}/x.bin at 0x7f{rank}\n"
        for rank in range(3)
    )
    assert (only(text).ranks, only(text).count) == ([0, 1, 2], 3)


@pytest.mark.parametrize("colour", ["", "\ufffd[36m", "[36m"])
def test_failure_of_a_ray_task_is_reported_once(colour: str) -> None:
    text = f"""\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    ray.get(work)
    ~~~~~~~^^^^^^
ray.exceptions.RayTaskError(ValueError): {colour}ray::Worker.step() (pid=12, ip=10.0.0.1, actor_id=0ab1)
  File "worker.py", line 12, in step
    raise ValueError("bad")
ValueError: sequence 12 has no answer
"""
    unknown = only(text)
    assert (unknown.exception, unknown.message) == ("ValueError", "sequence 12 has no answer")
    assert unknown.frames == ["train.py:5 in <module>", "worker.py:12 in step"]


def test_failure_of_an_actor_is_that_of_its_constructor() -> None:
    text = """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    ray.get(work)
ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, \
ray::q7Worker_0:0:Worker.__init__() (pid=12, ip=10.0.0.1, actor_id=0ab1)
  File "worker.py", line 12, in __init__
    assert size > 0, f"size {size} is too small"
AssertionError: size 0 is too small
"""
    unknown = only(text)
    assert (unknown.exception, unknown.message) == ("AssertionError", "size 0 is too small")
    assert unknown.frames == ["train.py:5 in <module>", "worker.py:12 in __init__"]


def test_repetition_count_of_ray_is_not_part_of_the_message() -> None:
    end = "ValueError: odd [repeated 7x across cluster]"
    text = f'Traceback (most recent call last):\n  File "a.py", line 5, in f\n{end}\n'
    assert only(text).message == "odd"


STEPS = "".join(f"step {n} loss {2 - n / 50}\n" for n in range(40))


@pytest.mark.parametrize(
    "lines",
    [
        'Exception in thread "Thread-3" java.io.IOException: the file system is closed\n'
        "\tat com.example.Store.read(Store.java:7)\n",
        "thread 'tokio-runtime-worker' panicked at src/pool.rs:7:3:\nthe queue is full\n",
        "Error in save(x) : the disk is full\n",
    ],
)
def test_survived_error_is_not_a_failure(lines: str) -> None:
    assert diagnosed(f"{STEPS}{lines}Saved the checkpoint\n").verdict != "unknown-failure"


@pytest.mark.parametrize("quoted", ["Error in fit(x) : 3 levels", "panic: no route", "lua: a.lua:3: no file"])
def test_error_within_an_exception_message_is_part_of_it(quoted: str) -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: it failed\n'
    assert only(f"{text}{quoted}\n").exception == "RuntimeError"


def test_panic_raised_again_by_python_follows_the_user_frame() -> None:
    text = (
        "thread '<unnamed>' panicked at src/lib.rs:10:5:\nno token 9\n"
        'Traceback (most recent call last):\n  File "train.py", line 30, in <module>\n'
        "pyo3_runtime.PanicException: no token 9\n"
    )
    diagnosis = diagnosed(STEPS + text)
    assert diagnosis.verdict == "unknown-failure"
    assert diagnosis.unknown[0].exception.endswith("PanicException")
