"""Define records of the state of one rank at a stall, and of all ranks together."""

from __future__ import annotations

from typing import Literal

import msgspec

#: The origin of a stack. "probe": reported by a thread of the rank. "signal": by faulthandler, because the
#: interpreter lock was held. "py-spy": read from outside. Empty: no origin was available.
Origin = Literal["", "probe", "signal", "py-spy"]

#: The activity of a rank. "code" is the user's own code; "unknown": no stack.
Kind = Literal[
    "collective",
    "joining",
    "data",
    "rollout",
    "reward",
    "save",
    "load",
    "import",
    "lock",
    "compile",
    "debugger",
    "network",
    "process",
    "thread",
    "code",
    "unknown",
]

#: The state of a process. "stopped": by SIGSTOP or Ctrl-Z. "blocked": in the kernel, ignoring signals (disk,
#: network file system, driver). "ended": the process has ended.
Condition = Literal["alive", "stopped", "blocked", "ended"]

#: Why ranks are odd. "ended", "stopped": their process has ended, or was stopped. "behind": they have not
#: joined the collective in which the other ranks wait. "elsewhere": they wait for no rank. "diverged": they
#: wait in a collective other than that of the other ranks. "unfinished": all ranks have joined it, but the
#: odd ranks have not completed it. "unreachable": their host does not answer. Without a rank to blame:
#: "outside", all wait for something other than a rank (a store, a file system); "frozen", all were stopped
#: together.
Why = Literal[
    "",
    "ended",
    "stopped",
    "behind",
    "elsewhere",
    "diverged",
    "unfinished",
    "unreachable",
    "outside",
    "frozen",
]

#: The relation of the ranks of a group: data, tensor, pipeline, expert or context parallel; all ranks
#: ("world").
Axis = Literal["", "world", "dp", "tp", "pp", "ep", "cp"]


class Frame(msgspec.Struct, frozen=True):
    """One stack frame."""

    file: str
    line: int
    function: str  #: name of the function, with its class if the origin reports it
    module: str = ""


class ThreadStack(msgspec.Struct, frozen=True):
    """The stack of a thread, or of a task in the event loop of the previous thread; outermost frame first."""

    frames: tuple[Frame, ...]
    name: str = ""
    main: bool = False
    #: for a task of an event loop: "awaited" if the thread waits for the task, otherwise "other"
    task: Literal["", "awaited", "other"] = ""


class Waiting(msgspec.Struct, frozen=True):
    """A collective that a rank has joined, but that has not completed."""

    group: int  #: number of the process group in this rank
    name: str  #: name of the process group
    number: int  #: number of the collective in its process group
    operation: str  #: the operation's name, such as ``all_reduce``


class Counts(msgspec.Struct, frozen=True):
    """How many collectives of one process group a rank has joined, and how many have completed."""

    joined: int
    done: int | None  #: number of completed collectives, which only torch's flight recorder counts


class Recorded(msgspec.Struct, frozen=True):
    """What torch reports about the process groups of one rank. A flight recorder adds to it."""

    world_size: int = 0
    counts: dict[int, Counts] = {}  #: number of the process group in this rank → counts
    members: dict[str, tuple[int, ...]] = {}  #: name of the group → its global ranks, if reported
    waiting: tuple[Waiting, ...] = ()
    names: dict[int, str] = {}  #: number of the process group in this rank → its name, if both are known
    axes: dict[str, Axis] = {}  #: name of the group → its parallel axis, if known


class RankAnswer(msgspec.Struct):
    """Everything that was read about one rank."""

    rank: int
    pid: int
    origin: Origin = ""
    condition: Condition = "alive"
    threads: tuple[ThreadStack, ...] = ()
    recorded: Recorded = Recorded()
    lock_holder: str = ""  #: holder of the file lock that the process waits for, such as ``process 4711``
    kernel: str = ""  #: kernel function in which the process waits, if readable
    locked_out: bool = False  #: True if no thread was able to respond, because other code holds the GIL
    counters: dict[str, float] = {}  #: totals that the probe counts, such as ``batches`` and ``forwards``
    saves: dict[str, float] = {}  #: user's function that called a save → seconds of its longest save
    left: bool = False  #: True if the rank reported its own end without an error
    transferred: int | None = None  #: number of bytes that the main thread has read and written so far
    processor: float | None = None  #: processor seconds of the main thread so far
    worker: int | None = None  #: process ID of the data loader's worker that runs the user's code
    worker_frames: tuple[Frame, ...] = ()  #: frames of the process ``worker``, outermost first
    children: float | None = None  #: processor seconds of child processes so far
    children_transferred: dict[int, int] = {}  #: child process → bytes that it has read and written so far
    step: int | None = None  #: the newest completed step that the probe observed


class RankGroup(msgspec.Struct, frozen=True):
    """A process group of the job."""

    id: str  #: name and ranks of the group, which are equal in all its ranks
    ranks: str  #: global ranks, folded, such as ``0-7,16``
    name: str = ""  #: name that torch or the framework gives the group
    axis: Axis = ""


class Collectives(msgspec.Struct, frozen=True):
    """The position of a rank in one process group. Ranks with equal counts are in the same collective."""

    joined: int
    done: int | None = None  #: number of completed collectives; ``None`` if the backend does not count them
    operation: str = ""  #: the pending operation, such as ``all_reduce``


class StackGroup(msgspec.Struct):
    """Ranks that are in the same state at the same place."""

    ranks: list[int]
    kind: Kind
    condition: Condition = "alive"
    what: str = ""  #: the operation, such as ``all_gather`` or ``DataLoader.__next__``
    place: str = ""  #: the frame of the user's code, such as ``train.py:42 in step``
    collective: int | None = None  #: number of joined collectives, if it differs between ranks
    note: str = ""  #: additional information, such as the holder of the lock
    locked_out: bool = False
    busy: bool = False  #: True if the ranks compute, but no counter advances
    frames: list[str] = []  #: ``file:line in function``, outermost first
    worker: int | None = None  #: process of the data loader for which the rank waits, if known
    worker_frames: list[str] = []
    step: int | None = None  #: the newest step that the ranks have completed
    #: Collectives by ID of the process group; all ranks of this group have joined the same number.
    collectives: dict[str, Collectives] = {}


class StallStacks(msgspec.Struct):
    """The state of all ranks during a stall, on one host or on all hosts of the run.

    The first of the `groups` contain the ranks that wait, the last ones the odd ranks.
    """

    time: float  #: Unix seconds of the last response from a rank
    seconds: float  #: duration of the query of all ranks
    groups: list[StackGroup] = []
    odd: list[int] = []
    why: Why = ""
    elsewhere: int = 0  #: number of ranks on other hosts, whose state is unknown here
    file: str = ""  #: file in the run's folder that contains all stacks
    pids: dict[int, int] = {}  #: rank → process ID, for the ranks of this host
    layout: list[RankGroup] = []  #: the known process groups
    hosts: dict[str, str] = {}  #: host → its folded ranks; empty for a single host
    silent: list[str] = []  #: hosts of the run that do not respond
    candidates: list[int] = []  #: ranks that may be the culprit, if the culprit is not certain
    confidence: float = 0.0  #: confidence that `odd` and `why` are correct; 0 without a result
