"""What to do about the rank that holds up a run, by what it does there: one sentence, English or Chinese."""

from __future__ import annotations

from collections.abc import Mapping

from stallwatch_rules.stacks.records import Condition, Kind, StallStacks

_BY_CONDITION: Mapping[Condition, tuple[str, str]] = {
    "stopped": (
        "`kill -CONT PID` lets it go on, if nobody meant to stop it (Ctrl-Z, a debugger, a batch system).",
        "若不是有人有意暂停（Ctrl-Z、调试器、作业系统），用 `kill -CONT PID` 让它继续。",
    ),
    "blocked": (
        "Look at `dmesg` and at the mount that it works on: no time-out or signal ends such a wait.",
        "查看 `dmesg` 和它所用的挂载点：这种等待无法靠超时或信号结束。",
    ),
}
_BY_KIND: Mapping[Kind, tuple[str, str]] = {
    "network": (
        "Is the service that it calls up? Give the call a time-out: many clients wait for ever without one.",
        "它调用的服务还在吗？给该调用加超时：许多客户端默认会一直等。",
    ),
    "process": (
        "See what the child process does (`pstree -p`, py-spy), and give the call a time-out.",
        "看子进程在做什么（`pstree -p`、py-spy），并给该调用加超时。",
    ),
    "thread": (
        "See what was to answer it, another thread of that rank (in the file below) or another process, and"
        " give the wait a time-out.",
        "看它在等谁：该 rank 的其他线程（见下面的文件）或另一个进程，并给等待加超时。",
    ),
    "data": (
        "Look at the storage and at the loader's workers; DataLoader(timeout=…) makes such a wait an error.",
        "检查存储和数据加载的 worker；DataLoader(timeout=…) 会把这种等待变成报错。",
    ),
    "save": (
        "Does the storage still take data (`df`, `dmesg`, writing a file by hand)?",
        "存储还能写入吗（`df`、`dmesg`、手动写一个文件）？",
    ),
    "load": (
        "Does the storage still answer (`dmesg`, reading the file by hand)?",
        "存储还有响应吗（`dmesg`、手动读一下文件）？",
    ),
    "lock": (
        "End who holds the lock, if it is none of this run's; a lock file that nobody holds can go.",
        "若持锁者不属于该任务，结束它；无人持有的锁文件可以删除。",
    ),
    "rollout": (
        "Limit what it generates (max_new_tokens, the engine's own time limit); look at its last prompts.",
        "限制生成长度（max_new_tokens、引擎的时间上限），并检查最后的 prompt。",
    ),
    "reward": (
        "Give what the reward function waits for a time-out (a service, a program that it runs, a lock), and"
        " score what does not answer as zero.",
        "给奖励函数所等待的东西（服务、子程序、锁）加超时，无响应的样本记零分。",
    ),
    "debugger": ("Remove the breakpoint.", "去掉断点。"),
    "code": (
        "That call waits for something, or is in a loop that does not end: a second look at its stack tells"
        " which of them (`py-spy dump --pid PID`).",
        "该调用在等待，或陷入了不会结束的循环：再看一次它的堆栈即可分辨（`py-spy dump --pid PID`）。",
    ),
}
_DIVERGED = (
    "The ranks call different collectives. Look for a branch that not every rank takes (`if rank == 0`,"
    " data of different length, an early `break` or `continue`); TORCH_DISTRIBUTED_DEBUG=DETAIL names the"
    " first call that differs.",
    "各 rank 调用的集合通信不一致。检查并非所有 rank 都会进入的分支（`if rank == 0`、各 rank 数据长度不同、"
    "提前 `break` 或 `continue`）；设置 TORCH_DISTRIBUTED_DEBUG=DETAIL 可看出从哪一次调用开始不同。",
)
_LOCKED_OUT = (
    "It is in compiled code that keeps the interpreter lock: `py-spy dump --native --pid PID` or gdb tells"
    " where.",
    "它停在占着解释器锁的编译代码中：`py-spy dump --native --pid PID` 或 gdb 可以看出停在哪里。",
)


def remedy(stacks: StallStacks, language: str) -> str:
    """What to do about the odd ranks, or all of them, where these do the same; empty where nothing is."""
    if stacks.why == "diverged":
        return _DIVERGED[language.startswith("zh")]
    odd = [group for group in stacks.groups if not stacks.odd or set(group.ranks) & set(stacks.odd)]
    if len({(group.kind, group.condition, group.locked_out) for group in odd}) != 1:
        return ""
    group = odd[0]
    if group.condition != "alive":
        found = _BY_CONDITION.get(group.condition)
    else:
        found = _LOCKED_OUT if group.locked_out and group.kind == "code" else _BY_KIND.get(group.kind)
    pid = next((str(stacks.pids[rank]) for rank in group.ranks if rank in stacks.pids), "PID")
    return found[language.startswith("zh")].replace("PID", pid) if found is not None else ""
