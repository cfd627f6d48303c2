"""From a rank's stack, determine its operation and the line of user code that called the operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import PurePosixPath

import msgspec

from stallwatch_rules.stacks.kinds import EVALUATES, SAVES, TIERS, is_library, kind_of
from stallwatch_rules.stacks.reading import main_thread
from stallwatch_rules.stacks.records import Frame, Kind, RankAnswer, ThreadStack
from stallwatch_rules.text.lazy import lazy

_BACKWARD = ("run_backward", "_engine_run_backward", "backward")
_LOOP = lazy(r"/(?:selectors|asyncio/\w+)\.py$")
_WAITS: tuple[Kind, ...] = ("collective", "joining")
# Kinds of activity in which the frames might not show that the rank waits in a collective.
_MAY_WAIT: tuple[Kind, ...] = ("code", "unknown", "thread", "rollout", "save", "load")


class RankActivity(msgspec.Struct, frozen=True):
    """The activity of a rank, and the rank's location in the code.

    `frames` are the frames of the thread that shows the activity.
    """

    kind: Kind
    what: str = ""
    place: str = ""
    frames: tuple[Frame, ...] = ()

    @property
    def waits(self) -> bool:
        """True if the rank waits for other ranks."""
        return self.kind in _WAITS


def activity_of_rank(rank: RankAnswer) -> RankActivity:
    """Return the activity of a rank, based on the stack of its main thread.

    If the main thread waits for autograd, the stack of the autograd thread is used. If the main thread waits
    in an event loop, the stacks of the awaited tasks are used.
    """
    main = main_thread(rank.threads)
    if main is None or not main.frames:
        return _recorded(rank, RankActivity("unknown"))
    found = _by_frames(main)
    awaited = _awaited(rank.threads, main)
    # The thread waits for events in an event loop. The internal calls of uvloop have no frames.
    if awaited and _LOOP.search(main.frames[-1].file.replace("\\", "/")):
        found = _by_frames(ThreadStack(awaited))
        frames = (*main.frames, *awaited)
        return _recorded(rank, RankActivity(found.kind, found.what, place_of(frames), frames))
    if not found.waits and main.frames[-1].function.rpartition(".")[2] in _BACKWARD:
        for thread in rank.threads:
            other = _by_frames(thread)
            if other.waits:
                return RankActivity(other.kind, other.what, found.place, (*main.frames, *thread.frames))
    return _recorded(rank, found)


def _by_frames(thread: ThreadStack) -> RankActivity:
    frames, place = thread.frames, place_of(thread.frames)
    for tier in range(TIERS):
        for at in range(len(frames) - 1, -1, -1):
            known = kind_of(frames[at], tier, innermost=at == len(frames) - 1)
            if known is not None:
                kind, what = known
                if kind == "reward":
                    what = _called(frames[at + 1 :]) or what
                return RankActivity(kind, what, place, frames)
        if _imports(frames):
            return RankActivity("import", "", place, frames)
    return RankActivity("code", "", place, frames)


def _called(inner: Sequence[Frame]) -> str:
    """Return the name of the user's function that a library called, or an empty string if there is none."""
    names = (frame.function.rpartition(".")[2] for frame in inner if not is_library(frame))
    return next(names, "")


def _imports(frames: Sequence[Frame]) -> bool:
    inner = takewhile(is_library, reversed(frames))
    return any(frame.file.startswith("<frozen importlib") for frame in inner)


def _recorded(rank: RankAnswer, found: RankActivity) -> RankActivity:
    """Return `found`. If the frames are inconclusive, return the wait that torch recorded instead.

    Frames are inconclusive in compiled code, for example.
    """
    waiting = rank.recorded.waiting
    in_library = not found.frames or is_library(found.frames[-1])
    hidden = found.kind in _MAY_WAIT and in_library
    if waiting and (hidden or (found.kind, found.what) == ("collective", "wait")):
        return RankActivity("collective", waiting[0].operation, found.place, found.frames)
    return found


def _awaited(threads: Sequence[ThreadStack], main: ThreadStack) -> tuple[Frame, ...]:
    """Return the stack frames of the tasks that the main thread awaits, task by task."""
    tasks = takewhile(lambda thread: thread.task == "awaited", threads[threads.index(main) + 1 :])
    return tuple(frame for task in tasks for frame in task.frames)


def place_of(frames: Iterable[Frame]) -> str:
    """Return the innermost frame of user code, or else of any code, in the form ``train.py:42 in step``."""
    known = list(frames)
    if not known:
        return ""
    frame = next((frame for frame in reversed(known) if not is_library(frame)), known[-1])
    return f"{PurePosixPath(frame.file).name}:{frame.line} in {frame.function}"


def own_places(frames: Iterable[Frame]) -> list[tuple[str, int]]:
    """Return the file and line of each frame in the user's code, outermost frame first."""
    return [(frame.file, frame.line) for frame in frames if not is_library(frame)]


def caller(doing: RankActivity) -> str:
    """Return the user's innermost function around the library call from which the activity was derived."""
    kinds = [kind_of(frame) for frame in doing.frames]
    calls = [at for at, known in enumerate(kinds) if known is not None and known[0] == doing.kind]
    outside = doing.frames[: calls[-1]] if calls else doing.frames
    outer = [frame.function for frame in outside if not is_library(frame)]
    return outer[-1].rpartition(".")[2] if outer else ""


def evaluates(frames: Iterable[Frame]) -> bool:
    """Return whether the name of any function on the stack indicates an evaluation."""
    return any(EVALUATES.search(frame.function.rpartition(".")[2]) for frame in frames)


def saves(frames: Iterable[Frame]) -> bool:
    """Return whether the name of any of the user's functions on the stack indicates a save."""
    return any(SAVES.search(frame.function.rpartition(".")[2]) for frame in frames if not is_library(frame))
