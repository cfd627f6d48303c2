"""Three forms of a process's stacks, read into one: the probe's, faulthandler's and py-spy's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from stallwatch_rules.stacks.records import Frame, ThreadStack
from stallwatch_rules.text.foreign_json import read_json
from stallwatch_rules.text.lazy import lazy

_MOST_FRAMES = 200
_OURS = "/probe/stacks.py"  # of the exporter
# "Thread 0x00007f1c (most recent call first):"; Python 3.14 puts the thread's name behind the number.
_THREAD = lazy(
    r"^(?:Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FRAME = lazy(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)$')


def from_probe(answer: Any) -> tuple[ThreadStack, ...]:
    """The threads in what a rank's probe told; what is malformed is left out."""
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


def _frames(told: dict[str, Any]) -> tuple[Frame, ...]:
    frames = (_frame(frame) for frame in _list(told.get("frames")))
    return tuple(frame for frame in frames if frame is not None)


def _frame(told: Any) -> Frame | None:
    if not isinstance(told, list) or len(told) != 4 or not isinstance(told[1], int):
        return None
    return Frame(str(told[0]), told[1], str(told[2]), str(told[3]))


def from_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """The threads of a dump. It marks no main thread, but that is the oldest, and the oldest comes last.

    Of two dumps, as two asked for one at the same time, each thread counts as it was in the later one.
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
    return without_ours(
        ThreadStack(tuple(reversed(frames)), name, place == last)
        for place, (name, frames) in enumerate(stacks)
    )


def from_py_spy(text: str | bytes) -> tuple[ThreadStack, ...]:
    """The threads in the output of ``py-spy dump --json``; none where it is no such output."""
    try:
        told = read_json(text)
    except ValueError:
        return ()
    found = []
    for thread in _list(told):
        if not isinstance(thread, dict):
            continue
        frames = [
            Frame(str(one.get("filename") or ""), int(one.get("line") or 0), str(one.get("name") or ""))
            for one in _list(thread.get("frames"))[:_MOST_FRAMES]
            if isinstance(one, dict) and isinstance(one.get("line") or 0, int)
        ]
        main = thread.get("thread_name") == "MainThread" or thread.get("os_thread_id") == thread.get("pid")
        found.append(ThreadStack(tuple(reversed(frames)), str(thread.get("thread_name") or ""), main))
    return without_ours(found)


def without_ours(threads: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    """The threads but for the one in which the probe waits to be asked."""
    return tuple(
        thread
        for thread in threads
        if not (thread.frames and thread.frames[-1].file.replace("\\", "/").endswith(_OURS))
    )


def main_thread(threads: Iterable[ThreadStack]) -> ThreadStack | None:
    """The main thread; where none is marked, the only one."""
    known = [thread for thread in threads if not thread.task]
    marked = [thread for thread in known if thread.main]
    return marked[0] if marked else known[0] if len(known) == 1 else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
