"""What is known of one rank at a stall, and what the ranks tell together. Plain data, no behaviour."""

from __future__ import annotations

from typing import Literal

import msgspec

#: "probe": a thread of the rank told it. "signal": faulthandler did, as the interpreter lock was held.
#: "py-spy": read from outside. Empty: nobody could.
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

#: "stopped": by SIGSTOP or Ctrl-Z. "blocked": in the kernel, deaf to signals (disk, network file system,
#: driver). "ended": the process is gone.
Condition = Literal["alive", "stopped", "blocked", "ended"]

#: Why ranks are the odd ones. "ended", "stopped": their process is gone, or stopped. "behind": they have not
#: joined the collective that the others wait in. "elsewhere": they wait for no rank. "diverged": they wait in
#: another collective than the others. "unfinished": all have joined it, and these are not done with it.
#: "unreachable": their host does not answer. No rank to blame: "outside", all wait for something that is no
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
    function: str  #: with its class where the origin tells it
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
    """How many collectives of one process group a rank has joined, and how many of them are done."""

    joined: int
    done: int | None  #: ``None``: only torch's flight recorder knows it


class Recorded(msgspec.Struct, frozen=True):
    """What torch knows in one rank of its process groups, with its flight recorder or without."""

    world_size: int = 0
    counts: dict[int, Counts] = {}  #: by the number of the process group in this rank
    members: dict[str, tuple[int, ...]] = {}  #: global ranks by the group's name, where that is told
    waiting: tuple[Waiting, ...] = ()
    names: dict[int, str] = {}  #: of process groups by their number in this rank, where both are known
    axes: dict[str, Axis] = {}  #: by the group's name: what its ranks share, where that is known


class Asked(msgspec.Struct):
    """Everything that was learnt of one rank."""

    rank: int
    pid: int
    origin: Origin = ""
    condition: Condition = "alive"
    threads: tuple[ThreadStack, ...] = ()
    recorded: Recorded = Recorded()
    lock_holder: str = ""  #: who holds the file lock that the process waits for, such as ``process 4711``
    kernel: str = ""  #: where in the kernel it waits, if that may be read
    locked_out: bool = False  #: no thread of the rank could answer: other code holds the interpreter lock
    counters: dict[str, float] = {}  #: totals that its probe counts, such as ``batches`` and ``forwards``
    saves: dict[str, float] = {}  #: seconds of the longest save, by the user's function that called it
    left: bool = False  #: it has ended without an error, as it said itself
    transferred: int | None = None  #: bytes that its main thread has read and written so far
    processor: float | None = None  #: processor seconds of its main thread so far
    worker: int | None = None  #: the process of its data loader that runs the user's own code
    worker_frames: tuple[Frame, ...] = ()  #: of that worker, its outermost first
    children: float | None = None  #: processor seconds of the processes that it started, so far
    step: int | None = None  #: the newest step that its probe saw finished


class RankGroup(msgspec.Struct, frozen=True):
    """A process group of the job."""

    id: str  #: equal in every rank that knows the group: made of its name and its ranks
    ranks: str  #: global ranks, folded, such as ``0-7,16``
    name: str = ""  #: as torch or the framework calls it
    axis: Axis = ""


class Collectives(msgspec.Struct, frozen=True):
    """How far a rank is in one process group. Two that count alike have joined the same collectives."""

    joined: int
    done: int | None = None  #: ``None``: the backend does not count it
    operation: str = ""  #: that is under way, such as ``all_reduce``


class StackGroup(msgspec.Struct):
    """Ranks that do the same at the same place."""

    ranks: list[int]
    kind: Kind
    condition: Condition = "alive"
    what: str = ""  #: the operation, such as ``all_gather`` or ``DataLoader.__next__``
    place: str = ""  #: the user's own frame, such as ``train.py:42 in step``
    collective: int | None = None  #: collectives joined, where the ranks' numbers differ
    note: str = ""  #: such as who holds the lock
    locked_out: bool = False
    busy: bool = False  #: it computes, and nothing that is counted advances
    frames: list[str] = []  #: ``file:line in function``, outermost first
    worker: int | None = None  #: the process of the data loader that it waits for, if it is known
    worker_frames: list[str] = []
    step: int | None = None  #: the newest one that they have finished
    #: By the id of the process group: members of a group that are here are equally far in it.
    collectives: dict[str, Collectives] = {}


class StallStacks(msgspec.Struct):
    """Where all ranks were at a stall: those of one host, or of all hosts of the run.

    `groups` begins with those that wait, and ends with the odd ones.
    """

    time: float  #: Unix seconds at which the last rank had told
    seconds: float  #: it took to ask them all
    groups: list[StackGroup] = []
    odd: list[int] = []
    why: Why = ""
    elsewhere: int = 0  #: ranks on other hosts, of which nothing is known here
    file: str = ""  #: all stacks, in the run's folder
    pids: dict[int, int] = {}  #: of the ranks on this host, by rank
    layout: list[RankGroup] = []  #: the process groups that are known
    hosts: dict[str, str] = {}  #: the folded ranks of each host; empty for one host alone
    silent: list[str] = []  #: hosts of the run that do not answer
    candidates: list[int] = []  #: where none is to blame for certain: those of which one is
    confidence: float = 0.0  #: that `odd` and `why` are right; 0 if there is nothing to say
