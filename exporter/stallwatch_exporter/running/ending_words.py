"""How a command ended, as one sentence in the reader's language. What is stored is the English one."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_exporter.incident import Ending
from stallwatch_exporter.running.ending import TIMEOUT_EXIT, signal_of
from stallwatch_exporter.running.memory_held import memory_in_chinese
from stallwatch_rules.endings import Crash, Running

_ENGLISH, _ZH = 0, 1
_CHINESE = {
    "finished": "命令以 0 退出。",
    "failed": "命令以退出码 {code} 退出。",
    "killed": "命令被 {signal} 终止（退出码 {code}）。",
    "aborted": "任务停滞，stallwatch 按 [stall] on_stall = abort 终止了命令（退出码 {code}）。",
    "passed-on": "stallwatch 收到 {signal} 并转给了命令；命令随之结束（退出码 {code}）。",
    "oom-killed": "内核的 OOM killer 杀死了进程（退出码 {code}）。",
    "timeout": "timeout(1) 的时间到了（退出码 {code}）。",
    "time-limit": "作业到了 Slurm 设定的时间上限（退出码 {code}）。",
    "cancelled": "Slurm 取消了作业（退出码 {code}）。",
    "interrupted": "命令被中断（Ctrl-C，SIGINT；退出码 {code}）。",
    "unknown": "命令如何结束，日志文件没有说明。",
    "stopped-watching": "监视已停止。",
}
# Of a run that failed although its command returned 0: by who saw it.
_CRASHES = {
    "signal": ("{who} was ended by {signal}", "{who} 被 {signal} 终止"),
    "code": ("{who} exited with {code}", "{who} 以退出码 {code} 退出"),
    "error": ("{who} died of {error}, exit code {code}", "{who} 因 {error} 失败，退出码 {code}"),
    "silence": (
        "{who} ended without a word, probably by SIGKILL",
        "{who} 没有留下任何信息就结束了，多半是被 SIGKILL 终止",
    ),
    "log": ("its log ends in a failure", "日志以失败结尾"),
    "log-error": ("its log ends in a failure, {error}", "日志以失败结尾：{error}"),
    "loss": ("its loss was NaN at the end", "结束时 loss 为 NaN"),
}
_RETURNED = ("The command returned 0, but {how}{where}{hint}.", "命令返回 0，但{how}{where}{hint}。")
_AT_STEP = (", at step {step:,}", "（第 {step:,} 步）")
_AT_STEP_OF = (", at step {step:,} of {total:,}", "（第 {step:,} 步，共 {total:,} 步）")
_HIDDEN = {
    "pipe": (
        "; a pipe hides exit codes: use `set -o pipefail`",
        "；管道会隐藏退出码：请使用 `set -o pipefail`",
    ),
    "wait": (
        "; `wait` hides exit codes: wait for each process by its number",
        "；`wait` 会隐藏退出码：请按进程号逐个等待",
    ),
}
_PROGRAM = ("its program", "程序")
_MOST_NAMED = 8  # ranks that are still up
STOPPED_WATCHING = "The watching was stopped."
ABORTED = "It stood still, and stallwatch ended it ([stall] on_stall = abort)."


def detail_in(ending: Ending, language: str) -> str:
    """The ending's detail in this language."""
    if not language.startswith("zh") or not ending.detail:
        return ending.detail
    more = memory_in_chinese(ending.detail) + running_sentence(ending.running, language)
    if ending.crash is not None:
        return crash_sentence(ending.crash, language) + more
    how = _CHINESE[_sentence(ending)].format(
        code="-" if ending.exit_code is None else ending.exit_code, signal=_signal(ending)
    )
    return how + more


def _sentence(ending: Ending) -> str:
    if ending.kind == "time-limit" and ending.exit_code == TIMEOUT_EXIT and "timeout(1)" in ending.detail:
        return "timeout"
    if ending.kind == "killed":
        if ending.detail.startswith(ABORTED):
            return "aborted"
        if ending.detail.startswith("Slurm"):
            return "cancelled"
        if "was sent to stallwatch" in ending.detail:
            return "passed-on"
        return "killed" if ending.signal else "failed"
    if ending.kind == "unknown" and ending.detail == STOPPED_WATCHING:
        return "stopped-watching"
    return ending.kind


def _signal(ending: Ending) -> str:
    """What was sent, where that is told: the command may have ended by another, or by none."""
    before, found, _ = ending.detail.partition(" was sent to stallwatch")
    return before if found else ending.signal or ""


def crash_sentence(crash: Crash, language: str) -> str:
    """What failed although the command returned 0, and how it hid that."""
    at = _ZH if language.startswith("zh") else _ENGLISH
    ended_by = signal_of(crash.code)[0] if crash.code is not None else None
    how: str = crash.by
    if how == "process":
        how = "signal" if ended_by is not None else "error" if crash.error else "code"
    elif how == "log" and crash.error:
        how = "log-error"
    told = _CRASHES[how][at].format(
        who=f"rank {crash.rank}" if crash.rank is not None else _PROGRAM[at],
        signal=ended_by.name if ended_by is not None else "",
        code=crash.code,
        error=crash.error,
    )
    where = ""
    if crash.step is not None:
        where = (_AT_STEP if crash.total is None else _AT_STEP_OF)[at].format(
            step=crash.step, total=crash.total
        )
    hint = _HIDDEN[crash.hidden][at] if crash.hidden and crash.by != "loss" else ""
    return _RETURNED[at].format(how=told, where=where, hint=hint)


def running_sentence(running: Sequence[Running], language: str) -> str:
    """Which ranks are still running; empty for none."""
    if not running:
        return ""
    if language.startswith("zh"):
        named = "、".join(f"rank {one.rank}（PID {one.pid}）" for one in running[:_MOST_NAMED])
        return f"{named}{'等' if len(running) > _MOST_NAMED else ''}仍在运行。"
    named = ", ".join(f"rank {one.rank} (PID {one.pid})" for one in running[:_MOST_NAMED])
    more = f" and {len(running) - _MOST_NAMED} more" if len(running) > _MOST_NAMED else ""
    return f"{named[0].upper()}{named[1:]}{more} {'is' if len(running) == 1 else 'are'} still running."
