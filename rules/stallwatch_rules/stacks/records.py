"""Define records for the state of one rank during a stall and for the state of all ranks."""

from __future__ import annotations

from typing import Literal

import msgspec

#: The origin of a stack. "probe": a thread of the rank reported the stack. "signal": faulthandler printed the
#: stack, because the interpreter lock was held. "py-spy": py-spy read the stack from outside the process.
#: Empty: no origin was available.
Origin = Literal["", "probe", "signal", "py-spy"]

#: The activity of a rank. "code": the rank runs the user's own code. "unknown": there is no stack.
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
    "input",
    "code",
    "unknown",
]

#: The state of a process. "stopped": SIGSTOP or Control+Z stopped the process. "blocked": the process is in
#: the kernel and ignores signals (because of a disk, network file system, or driver). "ended": the process
#: has ended.
Condition = Literal["alive", "stopped", "blocked", "ended"]

#: The reason why ranks are odd. "ended", "stopped": their processes have ended or were stopped. "behind":
#: they have not joined the collective in which the other ranks wait. "elsewhere": they do not wait for any
#: rank. "diverged": they wait in a different collective than the other ranks. "unfinished": all ranks have
#: joined the collective, but the odd ranks have not completed it. "unreachable": their host does not respond.
#: Two further reasons do not blame any rank. "outside": all ranks wait for something other than a rank (such
#: as a store or a file system). "frozen": all ranks were stopped together.
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

#: The kind of parallelism for which a group exists: data, tensor, pipeline, expert, or context parallelism;
#: "world" for the group of all ranks.
Axis = Literal["", "world", "dp", "tp", "pp", "ep", "cp"]


class Frame(msgspec.Struct, frozen=True):
    """One stack frame."""

    file: str
    line: int
    function: str  #: name of the function, with the name of its class if the origin reports the class
    module: str = ""


class ThreadStack(msgspec.Struct, frozen=True):
    """The stack of a thread, or of a task in the event loop of the previous thread.

    The outermost frame comes first.
    """

    frames: tuple[Frame, ...]
    name: str = ""
    main: bool = False
    #: For a task in an event loop: "awaited" if the thread waits for the task, otherwise "other".
    task: Literal["", "awaited", "other"] = ""


class Waiting(msgspec.Struct, frozen=True):
    """A collective that a rank has joined and that is not complete."""

    group: int  #: number of the process group in this rank
    name: str  #: name of the process group
    number: int  #: number of the collective in its process group
    operation: str  #: name of the operation, such as ``all_reduce``


class Counts(msgspec.Struct, frozen=True):
    """The numbers of collectives that a rank has joined and completed in one process group."""

    joined: int
    done: int | None  #: number of completed collectives, which only the torch flight recorder counts


class Recorded(msgspec.Struct, frozen=True):
    """The information that torch reports about the process groups of one rank.

    A flight recorder provides additional information.
    """

    world_size: int = 0
    counts: dict[int, Counts] = {}  #: number of the process group in this rank → numbers of collectives

    #: name of the group → global ranks of the group, if torch reports them
    members: dict[str, tuple[int, ...]] = {}
    waiting: tuple[Waiting, ...] = ()
    #: number of the process group in this rank → name of the group, if both are known
    names: dict[int, str] = {}
    axes: dict[str, Axis] = {}  #: name of the group → parallel axis of the group, if known


class RankAnswer(msgspec.Struct):
    """All information that was read about one rank."""

    rank: int
    pid: int
    origin: Origin = ""
    condition: Condition = "alive"
    threads: tuple[ThreadStack, ...] = ()
    recorded: Recorded = Recorded()
    lock_holder: str = ""  #: holder of the file lock for which the process waits, such as ``process 4711``
    kernel: str = ""  #: kernel function in which the process waits, if it can be read
    locked_out: bool = False  #: True if no thread could respond because other code holds the GIL
    reads_input: bool = False  #: True if the main thread waits to read standard input
    counters: dict[str, float] = {}  #: totals that the probe counts, such as ``batches`` and ``forwards``

    #: user's function that called a save → duration of its longest save in seconds
    saves: dict[str, float] = {}
    left: bool = False  #: True if the rank reported that it ended without an error
    transferred: int | None = None  #: number of bytes that the main thread has read and written
    #: Seconds for which the main thread has used a processor or has been ready to use one.
    processor: float | None = None
    worker: int | None = None  #: process ID of the data loader's worker process that runs the user's code
    worker_frames: tuple[Frame, ...] = ()  #: frames of the process ``worker``, outermost first
    children: float | None = None  #: processor time of the child processes in seconds

    #: process ID of a child process → number of bytes that it has read and written
    children_transferred: dict[int, int] = {}
    step: int | None = None  #: the latest completed step that the probe observed


class RankGroup(msgspec.Struct, frozen=True):
    """A process group of the job."""

    id: str  #: name and ranks of the group; all ranks of the group have the same ID
    ranks: str  #: global ranks of the group as text, such as ``0-7,16``
    name: str = ""  #: name of the group in torch or in the framework
    axis: Axis = ""


class Collectives(msgspec.Struct, frozen=True):
    """The position of a rank in one process group. Ranks with equal counts are in the same collective."""

    joined: int
    done: int | None = None  #: number of completed collectives (``None`` if the backend does not count them)
    operation: str = ""  #: the pending operation, such as ``all_reduce``


class StackGroup(msgspec.Struct):
    """Ranks that are in the same state at the same place in the code."""

    ranks: list[int]
    kind: Kind
    condition: Condition = "alive"
    what: str = ""  #: the operation of the ranks, such as ``all_gather`` or ``DataLoader.__next__``
    place: str = ""  #: location in the user's code, such as ``train.py:42 in step``

    #: Number of collectives that the ranks have joined, if this number differs between ranks.
    collective: int | None = None
    note: str = ""  #: additional information, such as the holder of a lock
    locked_out: bool = False
    busy: bool = False  #: True if the ranks compute but none of their counters advances
    frames: list[str] = []  #: ``file:line in function``, outermost first
    worker: int | None = None  #: process ID of the data loader's worker for which the ranks wait, if known
    worker_frames: list[str] = []
    step: int | None = None  #: the latest step that the ranks completed

    #: ID of a process group → position of the ranks in this group. All ranks of this record have the same
    #: position.
    collectives: dict[str, Collectives] = {}


class StallStacks(msgspec.Struct):
    """The state of all ranks during a stall, either on one host or on all hosts of the run.

    In `groups`, the first groups contain the ranks that wait, and the last groups contain the odd ranks.
    """

    time: float  #: Unix time of the last response from a rank, in seconds
    seconds: float  #: number of seconds that the query of all ranks took
    groups: list[StackGroup] = []
    odd: list[int] = []
    why: Why = ""
    elsewhere: int = 0  #: number of ranks on other hosts; the state of these ranks is unknown to this host
    file: str = ""  #: file with all stacks, in the folder of the run
    folder: str = ""  #: folder of the run on this host, which contains `file`
    pids: dict[int, int] = {}  #: rank → process ID (for a run on several hosts, only for the odd ranks)
    #: ranks as text → path of the file with their stacks on their host (only for a run on several hosts)
    files: dict[str, str] = {}
    layout: list[RankGroup] = []  #: the process groups that are known
    hosts: dict[str, str] = {}  #: host → ranks of the host as text (empty if there is only one host)
    silent: list[str] = []  #: hosts of the run that do not respond
    candidates: list[int] = []  #: ranks that might be the culprit, if the culprit is uncertain
    confidence: float = 0.0  #: confidence that `odd` and `why` are correct, or 0 if there is no result
