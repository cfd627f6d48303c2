"""Where the tasks of an event loop are: while all of them wait, the thread's own stack shows only the loop.

Nothing of asyncio is imported, and nothing is run in the loop: what the thread's frames and the tasks hold is
read from beside, with the interpreter lock held.
"""

from __future__ import annotations

import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

MOST_TASKS = 64
_MOST_FRAMES = 40
_MOST_AWAITED = 16
_ASYNCIO = re.compile(r"[/\\]asyncio[/\\](?:runners|base_events)\.py$")
_UNNAMED = re.compile(r"Task-\d+$")  # by a counter: it differs from rank to rank


def tasks(frame: FrameType | None) -> list[dict[str, Any]]:
    """The tasks of the loop that this thread runs; first, as `awaited`, the one it runs for, and so on.

    Names of Python 3.8 to 3.14: ``Runner.run`` holds ``self._loop`` and ``task`` (3.11), ``run`` before it
    ``loop``, ``run_until_complete`` the task as ``future`` (``asyncio/runners.py``, ``base_events.py``).
    """
    asyncio = sys.modules.get("asyncio")
    loop = main = None
    while frame is not None and asyncio is not None:
        if _ASYNCIO.search(frame.f_code.co_filename):
            held = frame.f_locals
            own = held.get("self")
            found = held.get("loop") or getattr(own, "_loop", None) or own
            loop = found if loop is None and hasattr(found, "call_soon_threadsafe") else loop
            main = main or held.get("task") or held.get("future")
        frame = frame.f_back
    if loop is None or asyncio is None:
        return []
    awaited = _awaited(main)
    others = [task for task in asyncio.all_tasks(loop) if task not in awaited]
    others.sort(key=lambda task: task.get_name())
    return [
        {"name": _name(task), "awaited": place < len(awaited), "frames": frames(task.get_coro())}
        for place, task in enumerate([*awaited, *others][:MOST_TASKS])
    ]


def _awaited(task: Any) -> list[Any]:
    """The task and, one after the other, those that it awaits: of several at once, the first."""
    found: list[Any] = []
    while hasattr(task, "get_coro") and task not in found and not task.done() and len(found) < _MOST_AWAITED:
        found.append(task)
        waiter = getattr(task, "_fut_waiter", None)
        several = getattr(waiter, "_children", None)  # of `gather`
        task = next((one for one in several if not one.done()), None) if several else waiter
    return found


def frames(coroutine: Any) -> list[list[Any]]:
    """``[file, line, function, module]`` of each coroutine that awaits the next one, outermost first."""
    found: list[list[Any]] = []
    while coroutine is not None and len(found) < _MOST_FRAMES:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                break
        else:
            break  # an iterator over a future: nothing further in is Python
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        module = frame.f_globals.get("__name__")
        found.append([code.co_filename, frame.f_lineno or 0, name, module if isinstance(module, str) else ""])
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return found


def _name(task: Any) -> str:
    name = str(task.get_name())
    return "" if _UNNAMED.match(name) else name
