"""How a command ended, as one sentence in the reader's language. What is stored is the English one."""

from __future__ import annotations

from stallwatch_exporter.incident import Ending
from stallwatch_exporter.running.ending import TIMEOUT_EXIT
from stallwatch_exporter.running.memory_held import memory_in_chinese

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
STOPPED_WATCHING = "The watching was stopped."
ABORTED = "It stood still, and stallwatch ended it ([stall] on_stall = abort)."


def detail_in(ending: Ending, language: str) -> str:
    """The ending's detail in this language."""
    if not language.startswith("zh") or not ending.detail:
        return ending.detail
    how = _CHINESE[_sentence(ending)].format(
        code="-" if ending.exit_code is None else ending.exit_code, signal=_signal(ending)
    )
    return how + memory_in_chinese(ending.detail)


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
