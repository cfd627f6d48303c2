"""Define what is known of one rank at a stall, and of all ranks together. Plain data, no behavior."""

from __future__ import annotations

from typing import Literal

import msgspec

#: "probe": reported by a thread of the rank. "signal": by faulthandler, as the interpreter lock was held.
#: "py-spy": read from outside. Empty: no origin could.
Origin = Literal["", "probe", "signal", "py-spy"]

#: What a rank does. "code" is the user's own code; "unknown": no stack.
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

#: "stopped": by SIGSTOP or Ctrl-Z. "blocked": in the kernel, ignoring signals (disk, network file system,
#: driver). "ended": the process is gone.
Condition = Literal["alive", "stopped", "blocked", "ended"]

#: Why ranks are the odd ones. "ended", "stopped": their process is gone, or stopped. "behind": they have not
#: joined the collective that the others wait in. "elsewhere": they wait for no rank. "diverged": they wait in
#: another collective than the others. "unfinished": all have joined it, and these have not completed it.
#: "unreachable": their host does not answer. No rank to blame: "outside", all wait for something other than a
#: rank (a store, a file system); "frozen", all stopped together.
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

#: What the ranks of a group share: data, tensor, pipeline, expert or context parallel; all ranks ("world").
Axis = Literal["", "world", "dp", "tp", "pp", "ep", "cp"]


class Frame(msgspec.Struct, frozen=True):
    """One call on a stack."""

    file: str
    line: int
    function: str  #: with its class if the origin reports it
    module: str = ""


class ThreadStack(msgspec.Struct, frozen=True):
    """One thread, or a task of the event loop that the thread before it runs; its outermost frame first."""

    frames: tuple[Frame, ...]
    name: str = ""
    main: bool = False
    task: Literal["", "awaited", "other"] = ""  #: of an event loop; whether its thread waits for it


class Waiting(msgspec.Struct, frozen=True):
    """A collective that a rank has joined and that is not done."""

    group: int  #: number of the process group in this rank
    name: str  #: name of the process group
    number: int  #: of the collective in that group
    operation: str  #: such as ``all_reduce``


class Counts(msgspec.Struct, frozen=True):
    """Number of collectives of one process group that a rank has joined, and of completed ones."""

    joined: int
    done: int | None  #: ``None``: only torch's flight recorder knows it


class Recorded(msgspec.Struct, frozen=True):
    """Facts that torch has in one rank about its process groups, with its flight recorder or without."""

    world_size: int = 0
    counts: dict[int, Counts] = {}  #: by the number of the process group in this rank
    members: dict[str, tuple[int, ...]] = {}  #: global ranks by the group's name, if reported
    waiting: tuple[Waiting, ...] = ()
    names: dict[int, str] = {}  #: of process groups by their number in this rank, if both are known
    axes: dict[str, Axis] = {}  #: by the group's name: what its ranks share, if known


class RankAnswer(msgspec.Struct):
    """Everything learned about one rank."""

    rank: int
    pid: int
    origin: Origin = ""
    condition: Condition = "alive"
    threads: tuple[ThreadStack, ...] = ()
    recorded: Recorded = Recorded()
    lock_holder: str = ""  #: holder of the file lock that the process waits for, such as ``process 4711``
    kernel: str = ""  #: kernel function in which it waits, if readable
    locked_out: bool = False  #: no thread of the rank could answer: other code holds the interpreter lock
    counters: dict[str, float] = {}  #: totals that its probe counts, such as ``batches`` and ``forwards``
    saves: dict[str, float] = {}  #: seconds of the longest save, by the user's function that called it
    left: bool = False  #: it reported its own end without an error
    transferred: int | None = None  #: bytes that its main thread has read and written so far
    processor: float | None = None  #: processor seconds of its main thread so far
    worker: int | None = None  #: the process of its data loader that runs the user's own code
    worker_frames: tuple[Frame, ...] = ()  #: of that worker, outermost first
    children: float | None = None  #: processor seconds of the processes that it started, so far
    step: int | None = None  #: the newest step that its probe saw completed


class RankGroup(msgspec.Struct, frozen=True):
    """A process group of the job."""

    id: str  #: equal in every rank that knows the group: its name and its ranks
    ranks: str  #: global ranks, folded, such as ``0-7,16``
    name: str = ""  #: torch's or the framework's name
    axis: Axis = ""


class Collectives(msgspec.Struct, frozen=True):
    """The position of a rank in one process group. Equal counts mean the same collectives."""

    joined: int
    done: int | None = None  #: ``None``: the backend does not count it
    operation: str = ""  #: the one under way, such as ``all_reduce``


class StackGroup(msgspec.Struct):
    """Ranks in the same state at the same place."""

    ranks: list[int]
    kind: Kind
    condition: Condition = "alive"
    what: str = ""  #: the operation, such as ``all_gather`` or ``DataLoader.__next__``
    place: str = ""  #: the user's own frame, such as ``train.py:42 in step``
    collective: int | None = None  #: collectives joined, if the ranks' numbers differ
    note: str = ""  #: such as the holder of the lock
    locked_out: bool = False
    busy: bool = False  #: it computes, and no counter advances
    frames: list[str] = []  #: ``file:line in function``, outermost first
    worker: int | None = None  #: process of the data loader that it waits for, if known
    worker_frames: list[str] = []
    step: int | None = None  #: the newest step that they have completed
    #: By the ID of the process group: the members of a group in here have joined the same number.
    collectives: dict[str, Collectives] = {}


class StallStacks(msgspec.Struct):
    """The state of all ranks at a stall: those of one host, or of all hosts of the run.

    `groups` begins with the ranks that wait, and ends with the odd ones.
    """

    time: float  #: Unix seconds of the last rank's answer
    seconds: float  #: duration of the query of all ranks
    groups: list[StackGroup] = []
    odd: list[int] = []
    why: Why = ""
    elsewhere: int = 0  #: ranks on other hosts, unknown here
    file: str = ""  #: all stacks, in the run's folder
    pids: dict[int, int] = {}  #: of the ranks on this host, by rank
    layout: list[RankGroup] = []  #: the process groups that are known
    hosts: dict[str, str] = {}  #: the folded ranks of each host; empty for one host alone
    silent: list[str] = []  #: hosts of the run that do not answer
    candidates: list[int] = []  #: if no rank is certainly to blame: one of these is
    confidence: float = 0.0  #: that `odd` and `why` are right; 0 without a judgement
