"""A run that was stopped by hand: the output of its ranks during the teardown is not a cause."""

from __future__ import annotations

import pytest

from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.phrases import badge, headline

ENDING = Ending("interrupted", 1, detail=message("run.interrupted", how=message("run.status-code", code=1)))
LOST_PEER = (
    "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    " [127.0.0.1]:32181. This is typically caused by a remote worker crashing."
)
UNKNOWN = "OddError: my own link to rank 1 is gone"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79 GiB"


def stamped(second: float, rank: int, *texts: str) -> str:
    """Return lines in the format of `stallwatch run`'s copies."""
    stamp = f"2026-11-22T02:{int(second) // 60:02}:{second % 60:012.9f}Z"
    return "".join(f"{stamp} stderr F [rank{rank}]: {text}\n" for text in texts)


def steps(first: int, last: int, begin: float = 0) -> str:
    return "".join(
        stamped(begin + i - first, 0, f"step {i}/60 loss {2 / i:.4f}") for i in range(first, last + 1)
    )


def crash(second: float, rank: int, last: str) -> str:
    frame = (
        "Traceback (most recent call last):",
        '  File "/srv/train.py", line 7, in <module>',
        "    step()",
    )
    return stamped(second, rank, *frame, last)


def diagnosed(catalogue: Catalogue, text: str, *, stalled: bool, ending: Ending | None = ENDING) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    return rendered(reading.diagnose(ending=ending, stalled=stalled))


WANDB = "/env/lib/python3.7/site-packages/wandb/sdk/interface/interface.py"
QUEUES = "/env/lib/python3.7/multiprocessing/queues.py"
CONNECTION = "/env/lib/python3.10/multiprocessing/connection.py"
PINNED = "/env/lib/python3.7/site-packages/torch/utils/data/_utils/pin_memory.py"


def lost(path: str, last: str) -> str:
    calls = "".join(f'  File "{item}", line 8, in get\n' for item in (path, QUEUES))
    return f"Exception in thread Thread-3:\nTraceback (most recent call last):\n{calls}{last}\n"


@pytest.mark.parametrize(
    ("before", "verdict"),
    [
        (lost(WANDB, "EOFError"), "interrupted"),
        (lost(WANDB, "Exception: The wandb backend process has shutdown"), "interrupted"),
        (lost(WANDB, "KeyError: 'loss'"), "unknown-failure"),
        (lost(PINNED, "ConnectionResetError: [Errno 104] Connection reset by peer"), "interrupted"),
        (lost("/srv/data.py", "EOFError"), "interrupted"),
        # The run needs this data: it hung without it until it was stopped.
        (lost("/srv/data.py", "ValueError: shard 17 has a broken record"), "unknown-failure"),
    ],
)
def test_tracker_error_before_ctrl_c_is_not_a_cause(catalogue: Catalogue, before: str, verdict: str) -> None:
    """Ctrl-C also ended W&B's process, whose threads report the loss."""
    text = "step 1/60 loss 2.0\n" + before
    stop = '  File "/srv/train.py", line 7, in <module>\nKeyboardInterrupt\n'
    reading, alone = RunReading(catalogue), RunReading(catalogue)
    reading.feed(lines_of(f"{text}Traceback (most recent call last):\n{stop}"))
    alone.feed(lines_of(text))
    needed = WANDB not in before or "KeyError" in before  # the training does not need its tracker
    assert reading.diagnose().verdict == verdict
    assert alone.diagnose().verdict == ("unknown-failure" if needed else "unfinished")


# refused by a process that still runs
REFUSED = "multiprocessing.context.AuthenticationError: digest sent was rejected"


@pytest.mark.parametrize(
    ("thread", "error", "verdict"),
    [
        ("_pin_memory_loop", "FileNotFoundError: [Errno 2] No such file or directory", "interrupted"),
        ("_pin_memory_loop", "EOFError", "interrupted"),
        ("_pin_memory_loop", REFUSED, "unknown-failure"),
        ("fetch_forever", "EOFError", "interrupted"),
    ],
)
def test_pin_memory_thread_error_after_ctrl_c_is_not_a_cause(
    catalogue: Catalogue, thread: str, verdict: str, error: str
) -> None:
    """A training that waits for that thread would report its loss (torch, ``dataloader.py``)."""
    calls = f'  File "{PINNED}", line 53, in {thread}\n  File "{CONNECTION}", line 752, in Client\n'
    text = "step 1/60 loss 2.0\nException in thread Thread-3 (_pin_memory_loop):\n"
    text += f"Traceback (most recent call last):\n{calls}{error}\nTraceback (most recent call last):\n"
    reading = RunReading(catalogue)
    reading.feed(lines_of(text + '  File "/srv/train.py", line 7, in <module>\nKeyboardInterrupt\n'))
    assert reading.diagnose().verdict == verdict


def test_handled_ctrl_c_is_recognized(catalogue: Catalogue) -> None:
    calls = f'  File "{PINNED}", line 53, in _pin_memory_loop\n  File "{CONNECTION}", line 752, in Client\n'
    text = "".join(f"step {n}/600 loss 2.0\n" for n in range(1, 200))
    text += f"Exception in thread Thread-3 (_pin_memory_loop):\nTraceback (most recent call last):\n{calls}"
    text += "EOFError\n2026-02-08 04:22:32 - LOGS    - Keyboard interruption. Exiting from early training\n"
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    assert reading.diagnose().verdict == "interrupted"


def test_workers_that_end_after_ctrl_c_are_not_a_cause(catalogue: Catalogue) -> None:
    dead = "RuntimeError: DataLoader worker (pid 349) exited unexpectedly with exit code 1. Details are lost"
    for first, second, verdict in (
        ("KeyboardInterrupt", dead, "interrupted"),
        (dead, "KeyboardInterrupt", "failed"),
    ):
        text = steps(1, 26) + crash(27, 0, first) + crash(27.5, 0, second)
        reading = RunReading(catalogue)
        reading.feed(lines_of(text))
        assert reading.diagnose().verdict == verdict


@pytest.mark.parametrize(("wait", "verdict"), [(1, "interrupted"), (600, "stalled")])
def test_earlier_tracker_error_is_not_the_reason_for_ctrl_c(
    catalogue: Catalogue, wait: float, verdict: str
) -> None:
    text = steps(1, 26) + "".join(stamped(27, 0, line) for line in lost(WANDB, "EOFError").splitlines())
    reading = RunReading(catalogue)
    reading.feed(lines_of(text + crash(27 + wait, 0, "KeyboardInterrupt")))
    assert reading.diagnose().verdict == verdict


@pytest.mark.parametrize("wreckage", [LOST_PEER, UNKNOWN, OOM])
def test_output_after_ctrl_c_is_not_the_cause_of_a_stall(catalogue: Catalogue, wreckage: str) -> None:
    for second, verdict, rule in ((600, "stalled", "silent-hang-no-error"), (27, "interrupted", None)):
        text = steps(1, 26) + crash(second, 1, "KeyboardInterrupt")
        text += crash(second + 1.5, 0, wreckage) + crash(second + 1.5, 0, "KeyboardInterrupt")
        found = diagnosed(catalogue, text, stalled=verdict == "stalled")
        assert (found.verdict, found.primary and found.primary.rule) == (verdict, rule)


WAITED = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms"
    " for recv operation to complete"
)


@pytest.mark.parametrize("late", [WAITED, LOST_PEER, "OddTimeout: Timed out waiting 1800000ms"])
def test_timeout_after_an_interrupt_is_not_a_stall(catalogue: Catalogue, late: str) -> None:
    for second, verdict in ((27, "interrupted"), (1000, "stalled")):
        text = steps(1, 26) + crash(second, 1, "KeyboardInterrupt") + crash(second + 1800, 0, late)
        assert diagnosed(catalogue, text, stalled=False, ending=None).verdict == verdict


@pytest.mark.parametrize("cause", [LOST_PEER, UNKNOWN, OOM])
def test_failure_before_ctrl_c_remains_the_cause(catalogue: Catalogue, cause: str) -> None:
    text = steps(1, 26) + crash(30, 0, cause) + crash(600, 1, "KeyboardInterrupt")
    found = diagnosed(catalogue, text, stalled=True)
    assert found.verdict in ("stalled", "unknown-failure", "failed")
    assert found.primary is None or found.primary.rule in ("gloo-connection-closed", "cuda-oom")


@pytest.mark.parametrize("cause", [LOST_PEER, UNKNOWN])
def test_survived_interrupt_excuses_no_later_failure(catalogue: Catalogue, cause: str) -> None:
    text = steps(1, 26) + crash(26, 1, "KeyboardInterrupt") + steps(27, 50, begin=40) + crash(70, 0, cause)
    found = diagnosed(catalogue, text, stalled=False, ending=None)
    assert found.verdict in ("unknown-failure", "failed")


def test_interrupt_known_only_from_the_ending_is_reported(catalogue: Catalogue) -> None:
    """A second signal within the first one's traceback cuts the log: CPython loses sys.stderr."""
    reading = RunReading(catalogue)
    lost = stamped(40, 0, "object type name: KeyboardInterrupt", "lost sys.stderr")
    reading.feed(lines_of(steps(1, 30) + lost))
    found = reading.diagnose(ending=ENDING, now=None)
    assert (found.verdict, found.interrupted_by) == ("interrupted", "user")
    assert render(badge(found)) == "INTERRUPTED" and render(badge(reading.diagnose())) == "UNFINISHED"


@pytest.mark.parametrize("before", ["", lost("/srv/data.py", "ValueError: shard 17 has a broken record")])
def test_exception_near_ctrl_c_is_in_the_headline(catalogue: Catalogue, before: str) -> None:
    """Steps from another stream come below the exception, so the run seems to have survived it."""
    stop = (
        'Traceback (most recent call last):\n  File "/srv/train.py", line 7, in <module>\nKeyboardInterrupt\n'
    )
    reading = RunReading(catalogue)
    reading.feed(lines_of(before + "".join(f"step {n}/60 loss 2.0\n" for n in range(1, 20)) + stop))
    found = reading.diagnose()
    assert found.verdict == "interrupted"
    assert bool(found.unknown) == bool(before)
    assert ("nothing else in this log" in render(headline(found), "en")) == (not before)
    assert ("没有其他异常" in render(headline(found), "zh")) == (not before)


def test_full_bar_does_not_complete_a_run_of_unknown_length(catalogue: Catalogue) -> None:
    epochs = "".join(
        f"Train Epoch: {epoch} [58/65 (88%)] Loss: {9 - epoch}.5\n"
        f"Train Epoch: {epoch} [65/65 (98%)] Loss: {9 - epoch}.1\n"
        " 89%|######## | 59/66 [00:14<00:01,  4.19it/s]\n100%|#########| 66/66 [00:15<00:00,  4.19it/s]\n"
        for epoch in range(4)
    )
    stop = 'Traceback (most recent call last):\n  File "/srv/a.py", line 7, in <module>\nKeyboardInterrupt\n'
    reading = RunReading(catalogue)
    reading.feed(lines_of(epochs + stop))
    assert reading.diagnose().verdict == "interrupted"
