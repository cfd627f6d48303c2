"""What processes print while they are torn down is not the root cause, whatever comes first in the file.

The parts of ``teardown.txt`` were printed by real programs on Python 3.11 and torch 2.13; paths are changed.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from smallruns import primary, raised, steps

from stallwatch_rules.endings import Ending
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

_TEXT = Path(__file__).with_name("teardown.txt").read_text()
PARTS = dict(part.split("\n", 1) for part in re.split(r"(?m)^== ", _TEXT)[1:])
NOISE = [name for name in PARTS if not name.startswith("cause: ")]
#: Cause → verdict, and its rule or exception.
CAUSES = {
    "an exception": ("unknown-failure", "ValueError"),
    "an exception of rank 1": ("unknown-failure", "ValueError"),
    "Ctrl-C": ("interrupted", None),
    "a worker killed by SIGHUP": ("failed", "sighup-terminal-closed"),
    "a worker killed by SIGKILL": ("failed", "dataloader-worker-killed"),
    "a process killed by SIGSEGV": ("failed", "process-segfault"),
    "a thread, for which the main thread waits": ("unknown-failure", "KeyError"),
    "a child, for which the main thread waits": ("unknown-failure", "IndexError"),
}


def diagnosed(catalogue: Catalogue, text: str) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    return reading.diagnose()


def root(diagnosis: Diagnosis) -> str | None:
    unknown = diagnosis.unknown[0].exception if diagnosis.verdict == "unknown-failure" else None
    return primary(diagnosis) or unknown


@pytest.mark.parametrize(("cause", "noise"), [*product(CAUSES, NOISE)])
def test_cause_is_found_for_any_order_of_flushing(catalogue: Catalogue, cause: str, noise: str) -> None:
    reason, wreck, more = PARTS[f"cause: {cause}"], PARTS[noise], PARTS["a destructor"]
    begun = steps(1, 40)
    orders = (reason + wreck, wreck + reason, more + wreck + reason, reason + wreck + more)
    for text in (*(begun + order for order in orders), wreck + begun + reason + more):
        found = diagnosed(catalogue, text)
        assert (found.verdict, root(found)) == CAUSES[cause], text[-5000:].replace(begun, "")


@pytest.mark.parametrize("noise", NOISE)
def test_lost_connection_is_the_cause_only_without_another(catalogue: Catalogue, noise: str) -> None:
    """A failure in a destructor ends no program; the loss of a thread or child may."""
    alone = diagnosed(catalogue, steps(1, 40) + PARTS[noise])
    killed = RunReading(catalogue)
    killed.feed(lines_of(steps(1, 40) + PARTS[noise]))
    ended = killed.diagnose(ending=Ending("killed", 137, "SIGKILL"))
    assert primary(alone) is None or not noise.startswith("a ")
    assert primary(ended) == "host-oom-sigkill"


def test_error_of_an_orphaned_child_is_not_fatal(catalogue: Catalogue) -> None:
    lost = PARTS["a child that lost its manager"]
    more = "".join(f"goal {n} is {n / 7:.1f} away\n" for n in range(100))
    assert diagnosed(catalogue, lost + more).verdict != "unknown-failure"
    last = diagnosed(catalogue, more + lost + "    goal 100 is 14.3 away\n")
    assert (last.verdict, last.unknown[0].message) == (
        "unknown-failure",
        "",
    )  # the program's line is no message


def test_error_of_an_unneeded_thread_is_not_the_cause(catalogue: Catalogue) -> None:
    died = PARTS["a thread that lost its process"]
    for after in ("KeyError: 'loss'", "BrokenPipeError: [Errno 32] Broken pipe"):
        text = f"{steps(1, 40)}{died.replace('BrokenPipeError: [Errno 32] Broken pipe', 'OddError: 7')}"
        found = diagnosed(catalogue, f"{text}{steps(41, 400)}{raised(after)}")
        assert root(found) == after.partition(":")[0]


SKIPPED = """2026-03-02 09:14:07,101 - data - ERROR - could not decode sample 660517, skipping
Traceback (most recent call last):
  File "/opt/train/data.py", line 175, in read
    image = Image.open(stream).convert('RGB')
OSError: image file is truncated (12 bytes not processed)
"""


def test_skipped_error_is_not_the_cause(catalogue: Catalogue) -> None:
    """The end follows at once: only the message shows that the program continued."""
    assert root(diagnosed(catalogue, steps(1, 40) + SKIPPED + raised("KeyError: 'loss'"))) == "KeyError"
    assert primary(diagnosed(catalogue, steps(1, 40) + SKIPPED)) is None
    tee = "".join(f"[default3]:{line}\n" for line in (SKIPPED + raised("KeyError: 'loss'")).splitlines())
    assert root(diagnosed(catalogue, steps(1, 40) + tee)) == "KeyError", "torchrun --tee writes no space"
    died = SKIPPED.replace(", skipping", "")
    assert primary(diagnosed(catalogue, steps(1, 40) + died)) == "media-file-unreadable"


def test_message_about_retries_does_not_cover_later_exceptions(catalogue: Catalogue) -> None:
    text = "ERROR: request failed, retrying\nstep 41/400 loss 0.5\n" + raised("KeyError: 'loss'")
    assert root(diagnosed(catalogue, steps(1, 40) + text)) == "KeyError"


CLOSED = (
    "RuntimeError: [/srv/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5."
    " This is typically caused by a remote worker crashing."
)


def in_rank(rank: int, last: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in raised(last).splitlines())


def in_thread(last: str, file: str = "/srv/run/monitor.py") -> str:
    calls = '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n'
    calls += f'  File "{file}", line 12, in poll\n    poll()\n'
    return f"Exception in thread Thread-2 (poll):\nTraceback (most recent call last):\n{calls}{last}\n"


@pytest.mark.parametrize(
    "cause",
    [
        "EOFError: Compressed file ended before the end-of-stream marker was reached",
        "EOFError: shard 17 is truncated",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "concurrent.futures._base.CancelledError",
        "_queue.Empty",
    ],
)
def test_lost_connection_of_a_main_thread_causes_peer_errors(catalogue: Catalogue, cause: str) -> None:
    """It is not excused by Ctrl-C either, which ends the waiting rank later."""
    failed = steps(1, 40) + in_rank(1, cause)
    exception = cause.partition(":")[0]
    peer = diagnosed(catalogue, failed + in_rank(0, CLOSED))
    assert (peer.verdict, peer.unknown[0].exception) == ("unknown-failure", exception)
    stopped = diagnosed(catalogue, failed + in_rank(0, "KeyboardInterrupt"))
    assert (stopped.verdict, stopped.unknown[0].exception) == ("unknown-failure", exception)


@pytest.mark.parametrize("lost", ["BrokenPipeError: [Errno 32] Broken pipe", "_queue.Empty"])
def test_lost_connection_after_ctrl_c_is_excused(catalogue: Catalogue, lost: str) -> None:
    text = steps(1, 40) + in_rank(0, "KeyboardInterrupt") + in_rank(1, lost)
    assert diagnosed(catalogue, text).verdict == "interrupted"


WANDB = "/usr/lib/python3.11/site-packages/wandb/sdk/wandb_run.py"


@pytest.mark.parametrize(
    ("cause", "noise"),
    [
        (
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "ValueError: I/O operation on closed file.",
        ),
        (
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "AttributeError: 'NoneType' has no 'poll'",
        ),
        ("RuntimeError: tokenizer process has shutdown: no vocabulary", "ValueError: write to closed file"),
        ("EOFError: Compressed file ended before the end-of-stream marker was reached", "TimeoutError: 7"),
        ("_queue.Empty", "TimeoutError: 7"),
    ],
)
def test_later_thread_error_does_not_explain_the_main_thread(
    catalogue: Catalogue, cause: str, noise: str
) -> None:
    for file in ("/srv/run/monitor.py", WANDB):
        found = diagnosed(catalogue, steps(1, 40) + raised(cause) + in_thread(noise, file))
        assert (found.verdict, root(found)) == ("unknown-failure", cause.partition(":")[0])


def test_earlier_thread_error_explains_only_with_a_cause(
    catalogue: Catalogue,
) -> None:
    lost = raised("ConnectionResetError: [Errno 104] Connection reset by peer")
    for died, reason in (
        (in_thread("TimeoutError: 7", WANDB), "ConnectionResetError"),
        (in_thread("EOFError: Compressed file ended before the end-of-stream marker"), "EOFError"),
        (in_thread("KeyError: 'reward'"), "KeyError"),
    ):
        assert root(diagnosed(catalogue, steps(1, 40) + died + lost)) == reason


def test_exit_code_of_a_sandbox_before_the_end_is_harmless(catalogue: Catalogue) -> None:
    begun = "".join(f"step {step}/60 loss {2 / step:.4f}\n" for step in range(1, 61))
    code, end = "[sandbox] exit code 137\n", "Training complete.\n"
    assert diagnosed(catalogue, begun + code + end).verdict == "finished"
    for text in (begun + code, begun + end + code, begun.replace("step 60/60 loss 0.0333\n", "") + code):
        assert primary(diagnosed(catalogue, text)) == "host-oom-sigkill"


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ("step 60/60 loss 0.0333\n", "finished"),
        ("Train: 100%|█████| 60/60 [00:59<00:00,  1.00it/s]\nFinal validation metrics: None\n", "finished"),
        ("step 50/60 loss 0.0333\n", "failed"),
    ],
)
def test_ray_worker_that_is_stopped_after_the_last_step_is_harmless(
    catalogue: Catalogue, end: str, verdict: str
) -> None:
    stopped = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error."
        " Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly by a signal."
        " SystemExit is raised (sys.exit is called). Exit code: 1. The process receives a SIGTERM.\n"
    )
    assert diagnosed(catalogue, steps(1, 40, total=60) + end + stopped).verdict == verdict
    crashed = stopped.replace("The process receives a SIGTERM.", "")
    assert (
        primary(diagnosed(catalogue, steps(1, 40, total=60) + end + crashed))
        == "ray-worker-died-system-error"
    )
