"""Collect the data that the agent requests from a process: rank, stacks, tasks, counters, and collectives.

Apart from ``json``, the functions import no modules, and they run nothing in an event loop. They hold the
interpreter lock while they read the frames and tasks of other threads.
"""

from __future__ import annotations

import _thread
import os
import re
import sys
import time

from .draft import INDEX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType
    from typing import Any

    from .api import Probe

MOST_THREADS = 64  #: maximum number of threads whose stacks are reported
INNERMOST, OUTERMOST = 80, 40  #: number of frames that are reported from each end of a stack
MOST_ENTRIES = 32  #: maximum number of collectives that are reported
# NCCL has its own flight recorder and dump function. `_dump_fr_trace_json` reads the recorder of gloo, even
# in torch 2.8, which provides both functions.
_RECORDERS = (("nccl", "_dump_nccl_trace_json"), ("gloo", "_dump_fr_trace_json"))
_ENTRY = ("collective_seq_id", "pg_id", "process_group", "profiling_name", "state", "is_p2p")
MOST_GROUPS = 4096
MOST_NAMES = 4  #: maximum number of names that are reported for one group
MOST_RANKS_BYTES = 192 << 10  #: maximum size of the rank lists of all groups as text, in bytes
# Modules whose global variables contain the process groups of a parallel layout (Megatron-core 0.15,
# DeepSpeed 0.19.8). The pipeline module contains the grid of a pipeline.
_LAYOUTS = ("megatron.core.parallel_state", "deepspeed.utils.groups")
_PIPELINE = "deepspeed.runtime.pipe.p2p"
MOST_TASKS = 64
_MOST_COROUTINES = 40  # maximum number of coroutines of one task
_MOST_AWAITED = 16
_ASYNCIO = re.compile(r"[/\\]asyncio[/\\](?:runners|base_events)\.py$")
_UNNAMED = re.compile(r"Task-\d+$")  # default task names contain a counter, which differs between ranks
_COUNTED = ("batches", "epochs", "epoch_batches", "switches", "forwards")
# Methods of a data loader's iterator that wait for workers.
_WAITS = ("_try_get_data", "_get_data", "_next_data")
_MOST_FRAMES = 40  # maximum number of frames that are searched for a data loader
_USUAL = 2  # number of saves after which a function's usual save duration is known
_MOST_WORKERS = 64


def ranks(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the global and local rank of this process. An unknown local rank is -1.

    The global rank comes from torch.distributed if possible. Otherwise, the ranks come from the variables of
    the launcher.
    """
    rank, local = _rank(), _number(environ.get("LOCAL_RANK"))
    if rank is None:
        rank = _number(environ.get("RANK"))
        rank = rank if rank >= 0 else max(local, 0)
    return rank, local


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 9 else -1


def _rank() -> int | None:
    """Return this process's rank if torch.distributed is initialized, or ``None`` otherwise."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
    except Exception:
        pass
    return None


def stacks() -> dict[str, Any]:
    """Return the stack of each other thread, outermost frame first. The main thread comes first."""
    threading = sys.modules.get("threading")
    # Do not use `threading.enumerate`, because a stalled thread might hold the lock that this function needs.
    known = dict(getattr(threading, "_active", {}))
    main = getattr(getattr(threading, "_main_thread", None), "ident", None)
    this_thread = _thread.get_ident()
    found = []
    workers: list[int] = []
    for ident, frame in sys._current_frames().items():
        if ident != this_thread:
            name = str(getattr(known.get(ident), "name", "") or "")
            thread = {"name": name, "main": ident == main, "frames": _frames(frame)}
            try:
                thread["tasks"] = tasks(frame)
            except Exception:  # the code relies on local variables of asyncio, whose names can change
                pass
            found.append(thread)
        if ident == main:
            workers = _awaited_workers(frame)
    found.sort(key=lambda each: not each["main"])
    return {
        "time": time.time(),
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "rank": _rank(),
        "threads": found[:MOST_THREADS],
        **({"workers": workers} if workers else {}),
    }


def _frames(frame: FrameType | None) -> list[list[Any]]:
    """Return the source location of each frame, outermost first. Omit the middle of a long stack."""
    found: list[list[Any]] = []
    while frame is not None:
        found.append(_place(frame))
        frame = frame.f_back
    if len(found) > INNERMOST + OUTERMOST:
        found[INNERMOST:-OUTERMOST] = [["…", 0, f"{len(found) - INNERMOST - OUTERMOST} frames left out", ""]]
    return found[::-1]


def _place(frame: FrameType) -> list[Any]:
    """Return ``[file, line, function, module]``.

    In Python 3.11 and later, the function's name includes its class.
    """
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    module = frame.f_globals.get("__name__")
    return [code.co_filename, frame.f_lineno or 0, name, module if isinstance(module, str) else ""]


def tasks(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return the tasks of a thread's event loop, starting with the tasks that the program awaits.

    While all tasks wait, the thread's own stack shows only the event loop. To find the tasks, the function
    reads local variables of asyncio by the names that Python 3.8 to 3.14 use (``asyncio/runners.py`` and
    ``base_events.py``): ``self._loop`` and ``task`` in ``Runner.run`` (3.11 and later), ``loop`` in ``run``
    (3.10 and earlier), and ``future`` in ``run_until_complete``.
    """
    asyncio = sys.modules.get("asyncio")
    loop = main = None
    while frame is not None and asyncio is not None:
        if _ASYNCIO.search(frame.f_code.co_filename):
            variables = frame.f_locals
            runner = variables.get("self")
            found = variables.get("loop") or getattr(runner, "_loop", None) or runner
            loop = found if loop is None and hasattr(found, "call_soon_threadsafe") else loop
            main = main or variables.get("task") or variables.get("future")
        frame = frame.f_back
    if loop is None or asyncio is None:
        return []
    awaited = _awaited(main)
    others = [task for task in asyncio.all_tasks(loop) if task not in awaited]
    others.sort(key=lambda task: task.get_name())
    return [
        {"name": _name(task), "awaited": place < len(awaited), "frames": _coroutines(task.get_coro())}
        for place, task in enumerate([*awaited, *others][:MOST_TASKS])
    ]


def _awaited(task: Any) -> list[Any]:
    """Return a task and the chain of tasks that it awaits.

    If a task awaits several tasks at once, the chain continues with the first unfinished task.
    """
    found: list[Any] = []
    while hasattr(task, "get_coro") and task not in found and not task.done() and len(found) < _MOST_AWAITED:
        found.append(task)
        waiter = getattr(task, "_fut_waiter", None)
        several = getattr(waiter, "_children", None)  # the awaited children of `gather`
        task = next((child for child in several if not child.done()), None) if several else waiter
    return found


def _coroutines(coroutine: Any) -> list[list[Any]]:
    """Return the source location of each coroutine in a chain of awaits, outermost first."""
    found: list[list[Any]] = []
    while coroutine is not None and len(found) < _MOST_COROUTINES:
        frames = (getattr(coroutine, f"{kind}_frame", None) for kind in ("cr", "gi", "ag"))
        frame = next((each for each in frames if each is not None), None)
        if frame is None:
            break  # the coroutine awaits a future, which has no frame
        found.append(_place(frame))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return found


def _name(task: Any) -> str:
    name = str(task.get_name())
    return "" if _UNNAMED.match(name) else name


def _awaited_workers(frame: FrameType | None) -> list[int]:
    """Return the process IDs of the data workers that the thread with this `frame` waits for."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name in _WAITS and frame.f_code.co_filename.endswith("dataloader.py"):
            workers = getattr(frame.f_locals.get("self"), "_workers", ())
            return [worker.pid for worker in workers if worker.pid][:_MOST_WORKERS]
        frame = frame.f_back
    return []


def counters(probe: Probe) -> dict[str, Any]:
    """Return the counters that show whether a rank is still computing, by name."""
    found: dict[str, Any] = {"phase": probe.doing, "steps": probe.steps}
    saves = {name: longest for name, (times, longest) in probe.saves.items() if times >= _USUAL}
    if saves:
        found["saves"] = saves
    for name in _COUNTED:
        value = probe.row[INDEX[name]]
        if value == value:  # NaN means that the value was never counted
            found[name] = value
    joined = [count for group in _groups() if (count := _joined(group)) is not None]
    if joined:
        found["collectives"] = sum(joined)
    return found


def _groups() -> list[Any]:
    """Return the process groups that contain this rank, in order of creation."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return list(getattr(getattr(c10d, "_world", None), "pg_map", None) or ())[:MOST_GROUPS]


def _joined(group: Any) -> int | None:
    """Return how many collectives of a group this rank has joined, excluding point-to-point sends.

    torch 2.1 to 2.13 provide this number. The call is safe during a hang because it reads a member of the
    backend without any lock: ``seqCollective_`` of NCCL or ``seq_`` of gloo. In torch 2.13, the function
    ``getSequenceNumberForGroup`` is in ProcessGroupNCCL.cpp and ProcessGroupGloo.cpp
    (torch/csrc/distributed/c10d), and init.cpp calls it without the interpreter lock.
    """
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # this backend does not count collectives
        return None


def process_groups(recorder: str) -> list[dict[str, Any]]:
    """Return the process groups of this rank: names, global ranks, and number of collectives joined.

    The first name is assigned by torch and is the same on all ranks. The other names describe the group's
    purpose. For a group that uses the backend `recorder`, the result also contains the group's number in the
    flight recorder.
    """
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    named, left = _framework_names(), MOST_RANKS_BYTES
    found: list[dict[str, Any]] = []
    recorded = 0
    for group in _groups():
        try:
            # `group_desc` exists in torch 2.3 and later.
            names = [str(world.pg_names[group]), str(getattr(group, "group_desc", "") or "")]
            ranks = _folded(world.pg_group_ranks[group])
            is_recorded = bool(recorder) and recorder in str(world.pg_map[group][0])
        except Exception:  # this torch version has different attributes, or the group was destroyed
            continue
        names += named.get(id(group), [])
        left -= len(ranks)
        described: dict[str, Any] = {
            "names": [name[:100] for name in names[: 2 + MOST_NAMES] if name],
            "joined": _joined(group),
        }
        if left >= 0:
            described["ranks"] = ranks
        if is_recorded:  # the recorder numbers the groups of its backend in order of creation
            described["recorded"] = recorded
            recorded += 1
        found.append(described)
    return found


def _framework_names() -> dict[int, list[str]]:
    """Return the names that Megatron-core and DeepSpeed give to each group, by the ID of the group object."""
    found: dict[int, list[str]] = {}
    for name in _LAYOUTS:
        module = sys.modules.get(name)
        for variable, value in list(vars(module).items()) if module is not None else ():
            if "_GROUP" in variable:
                # DeepSpeed stores its expert groups in a dict, keyed by name.
                for each in list(value.values())[:MOST_GROUPS] if isinstance(value, dict) else (value,):
                    found.setdefault(id(each), []).append(variable)
    grid = getattr(sys.modules.get(_PIPELINE), "_grid", None)
    for variable, each in list(getattr(grid, "__dict__", {}).items()):
        if variable.endswith("_proc_group"):
            found.setdefault(id(each), []).append(variable)
    return found


def _folded(ranks: Iterable[int]) -> str:
    """Return ranks as text, such as ``0-7,16``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def collectives() -> dict[str, Any]:
    """Return the flight recorder's counters and active entries, or ``{}`` if torch.distributed is not in use.

    Reading the recorder never waits for a device, because the recorder checks only whether events have passed
    (torch 2.13, torch/csrc/distributed/c10d/FlightRecorder.hpp). The recorder lists finished gloo collectives
    as active. Therefore, the answer contains only entries that are not retired.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    distributed = sys.modules.get("torch.distributed")
    if _rank() is None or c10d is None or distributed is None:
        return {}
    import json

    answer: dict[str, Any] = {"world_size": int(distributed.get_world_size())}
    recorded_of = ""
    for backend, name in _RECORDERS:
        try:
            recorder = json.loads(getattr(c10d, name)(includeCollectives=True, onlyActive=True))
        except Exception:  # this torch version has no such recorder or was built without the backend
            continue
        entries = [entry for entry in recorder.get("entries", ()) if not entry.get("retired")]
        status = recorder.get("pg_status", {})
        if entries or status:
            recorded_of, answer["status"] = backend, status
            last = entries[-MOST_ENTRIES:]
            answer["entries"] = [{key: entry.get(key) for key in _ENTRY} for entry in last]
            break
    # Read the groups last, so that their counts include the collectives in the recorder's entries.
    answer["groups"] = process_groups(recorded_of)
    return answer
