"""Convert the stacks of a process from the probe, faulthandler, or py-spy to a common form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from stallwatch_rules.stacks.records import Frame, ThreadStack
from stallwatch_rules.text.foreign_json import read_json
from stallwatch_rules.text.lazy import lazy

_MOST_FRAMES = 200
_OURS = "/probe/stacks.py"  # source file of the probe, in the exporter package

# For example, "Thread 0x00007f1c (most recent call first):". Python 3.14 adds the name of the thread after
# the number.
_THREAD = lazy(
    r"^(?:Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FRAME = lazy(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)$')


def from_probe(answer: Any) -> tuple[ThreadStack, ...]:
    """Return the threads in the response of a rank's probe. Malformed threads are dropped."""
    threads = answer.get("threads") if isinstance(answer, dict) else None
    found = []
    for thread in threads if isinstance(threads, list) else ():
        if isinstance(thread, dict):
            name = str(thread.get("name") or "")
            found.append(ThreadStack(_frames(thread), name, bool(thread.get("main"))))
            for task in _list(thread.get("tasks")):
                if isinstance(task, dict):
                    waited_for: Literal["awaited", "other"] = "awaited" if task.get("awaited") else "other"
                    found.append(ThreadStack(_frames(task), str(task.get("name") or ""), task=waited_for))
    return tuple(found)


def _frames(value: dict[str, Any]) -> tuple[Frame, ...]:
    frames = (_frame(frame) for frame in _list(value.get("frames")))
    return tuple(frame for frame in frames if frame is not None)


def _frame(value: Any) -> Frame | None:
    if not isinstance(value, list) or len(value) != 4 or not isinstance(value[1], int):
        return None
    return Frame(str(value[0]), value[1], str(value[2]), str(value[3]))


def from_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """Return the threads of a faulthandler dump.

    The last thread is the oldest thread, which is the main thread.

    If two processes requested a dump at the same time, the text contains two dumps. In this case, the state
    of each thread is taken from the later dump.
    """
    threads: dict[str, tuple[str, list[Frame]]] = {}
    frames: list[Frame] | None = None
    for line in text.splitlines():
        begin = _THREAD.match(line)
        if begin:
            threads.pop(begin["id"], None)
            frames = []
            threads[begin["id"]] = begin["name"] or "", frames
        elif frames is not None and (found := _FRAME.match(line)) and len(frames) < _MOST_FRAMES:
            number = int(found["line"]) if found["line"].isdigit() else 0
            frames.append(Frame(found["file"], number, found["function"]))
    stacks = list(threads.values())
    last = len(stacks) - 1
    return without_probe_thread(
        ThreadStack(tuple(reversed(frames)), name, place == last)
        for place, (name, frames) in enumerate(stacks)
    )


def from_py_spy(text: str | bytes) -> tuple[ThreadStack, ...]:
    """Return the threads in the output of ``py-spy dump --json``, or an empty tuple for any other text."""
    try:
        dump = read_json(text)
    except ValueError:
        return ()
    found = []
    for thread in _list(dump):
        if not isinstance(thread, dict):
            continue
        frames = [
            Frame(str(frame.get("filename") or ""), int(frame.get("line") or 0), str(frame.get("name") or ""))
            for frame in _list(thread.get("frames"))[:_MOST_FRAMES]
            if isinstance(frame, dict) and isinstance(frame.get("line") or 0, int)
        ]
        main = thread.get("thread_name") == "MainThread" or thread.get("os_thread_id") == thread.get("pid")
        found.append(ThreadStack(tuple(reversed(frames)), str(thread.get("thread_name") or ""), main))
    return without_probe_thread(found)


def without_probe_thread(threads: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    """Return the threads except the thread in which the probe waits for queries."""
    return tuple(
        thread
        for thread in threads
        if not (thread.frames and thread.frames[-1].file.replace("\\", "/").endswith(_OURS))
    )


def main_thread(threads: Iterable[ThreadStack]) -> ThreadStack | None:
    """Return the main thread. If no thread is marked as the main thread, return the only thread, if any."""
    known = [thread for thread in threads if not thread.task]
    marked = [thread for thread in known if thread.main]
    return marked[0] if marked else known[0] if len(known) == 1 else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
