"""The fixed words of the pages in English and Chinese. Rule pages bring their own translations."""

from __future__ import annotations

from collections.abc import Callable

LANGUAGES = {"en": "English", "zh": "中文"}

_WORDS: dict[str, tuple[str, str]] = {
    # pages and headings
    "runs": ("Runs", "训练任务"),
    "run": ("Run", "任务详情"),
    "postmortem": ("Post-mortem", "事后诊断"),
    "language": ("Language", "语言"),
    "logs": ("Log", "日志"),
    "incidents": ("Incidents", "事件"),
    # states
    "starting": ("starting", "启动中"),
    "training": ("training", "训练中"),
    "stalled": ("stalled", "停滞"),
    "degraded": ("degraded", "变慢"),
    "failed": ("failed", "失败"),
    "finished": ("finished", "已完成"),
    "stale": ("stale", "失联"),
    # columns and figures
    "state": ("State", "状态"),
    "step": ("Step", "步数"),
    "loss": ("Loss", "损失"),
    "step_time": ("Step time", "单步耗时"),
    "against_baseline": ("vs baseline", "相对基线"),
    "baseline": ("baseline {0}", "基线 {0}"),
    "no_step_for": ("No step for", "距上一步"),
    "threshold_is": ("stall at {0}", "{0} 视为停滞"),
    "memory": ("Memory", "显存/内存"),
    "invalidations": ("Invalidations", "缓存失效"),
    "per_step": ("{0} per step", "每步 {0} 次"),
    "warnings": ("Warnings", "警告"),
    "open_incidents": ("Incident", "事件"),
    "started": ("Started", "开始时间"),
    "duration": ("Duration", "时长"),
    "left": ("{0} left", "剩余 {0}"),
    "host": ("Host", "主机"),
    # charts
    "chart_progress": ("Trace-cache invalidations against progress", "trace cache 失效与训练进度"),
    "chart_step_time": ("Step time and stall threshold", "单步耗时与停滞阈值"),
    "steps_reached": ("Step reached", "已到步数"),
    "invalidations_so_far": ("Invalidations so far", "累计失效次数"),
    "warnings_so_far": ("warnings so far", "累计警告"),
    "since_last_step": ("since the last step", "距上一步"),
    "stall_threshold": ("stall threshold", "停滞阈值"),
    "rank": ("rank {0}", "rank {0}"),
    "allocated": ("allocated", "已分配"),
    "reserved": ("reserved", "已保留"),
    "peak": ("peak", "峰值"),
    "host_rss": ("resident, all processes", "常驻内存，全部进程"),
    "no_numbers_of_this": ("Not told by the log of this run: {0}.", "此任务的日志里没有：{0}。"),
    "list_comma": (", ", "、"),
    "undo_zoom": ("show all", "显示全部"),
    # verdicts
    "since": ("since {0} ({1})", "自 {0} 起（{1}）"),
    "at_step": ("at step {0}", "第 {0} 步"),
    "cause": ("Likely cause", "可能的原因"),
    "why": ("Why", "为什么"),
    "harm_here": ("In this run", "对本任务的影响"),
    "fixes": ("What to change", "如何处理"),
    "why_and_more": ("Why this happens, and all fixes in full", "原因与全部处理办法"),
    "all_well": ("Training: step {0} was {1} ago", "训练中：第 {0} 步完成于 {1} 前"),
    "is_starting": ("Starting: no step yet", "启动中：还没有完成任何一步"),
    "is_finished": ("Finished at step {0}", "已完成，到第 {0} 步"),
    "is_failed": ("Failed at step {0}", "失败，停在第 {0} 步"),
    "is_stale": ("No word from the agent for {0}", "agent 已失联 {0}"),
    "is_stale_why": (
        "What this page shows is as old as that. The agent, or its host, has ended or cannot be reached.",
        "本页内容停留在那时。agent 或其主机已退出或不可达。",
    ),
    "is_degraded": ("Slower than it was", "比之前变慢"),
    "is_stalled": ("Stalled: no step for {0}", "停滞：{0} 没有新的一步"),
    "ended_at": ("ended {0}", "结束于 {0}"),
    "open_for": ("open for {0}", "已持续 {0}"),
    "lasted": ("lasted {0}", "持续 {0}"),
    "open": ("open", "未恢复"),
    "resolved": ("resolved", "已恢复"),
    "going_for": ("going for {0}", "已运行 {0}"),
    "took": ("took {0}", "用时 {0}"),
    "scraped_ago": ("last scrape {0} ago", "{0} 前采集"),
    "from_copies": (
        "Read back from the run's log copies: no dashboard was open while it ran.",
        "由日志副本重建：运行期间没有打开看板。",
    ),
    "no_log": ("No log copies of this run here.", "此处没有该任务的日志副本。"),
    "rank_unknown": ("other lines", "其他行"),
    "more_lines": ("More lines", "更多行"),
    # runs page
    "no_runs": ("No runs yet", "还没有任务"),
    "no_runs_next": ("Put this before the command that trains:", "在训练命令前加上："),
    "no_runs_tail": ("Or watch the logs of a run that is already up:", "或监视已在运行的任务的日志："),
    "no_runs_dead": ("A run is already dead? Upload its logs:", "任务已经退出？上传它的日志："),
    "looked_in": ("Looked in {0}", "查找目录：{0}"),
    "open_run": ("Choose a row to open the run.", "点击一行打开任务。"),
    "choose_run": ("Choose a run", "选择任务"),
    "not_yet": (
        "No run of this name yet: it comes up here when it starts",
        "还没有这个名字的任务：启动后会显示在这里",
    ),
    "targets_failing": ("Endpoints that do not answer", "无响应的端点"),
    # post-mortem page
    "upload": (
        "Logs of one run: files of all ranks, or archives (.gz .xz .zst .zip .tar.*)",
        "一次运行的日志：各 rank 的文件或压缩包（.gz .xz .zst .zip .tar.*）",
    ),
    "upload_next": (
        "Drop the logs of a run that died: the verdict, its cause and what to change come up here."
        " They are read in this process and kept nowhere.",
        "把已退出任务的日志拖进来：这里会给出结论、原因和处理办法。日志只在本进程内读取，不会保存。",
    ),
    "upload_or": ("The same in a terminal:", "在终端里同样可以："),
    "reading": ("Reading {0} of {1}", "正在读取 {0} / {1}"),
    "read_all": ("Read {0} lines of {1} files in {2}", "已读 {1} 个文件共 {0} 行，用时 {2}"),
    "not_read": ("Could not be read", "无法读取"),
    "in_context": ("Where it was printed", "出现的位置"),
    "findings": ("Findings", "全部发现"),
    "unknown": ("Exceptions that no rule knows", "没有规则认识的异常"),
    "progress": ("Progress", "进度"),
    "environment": ("Environment", "环境"),
    "download_markdown": ("Download Markdown", "下载 Markdown"),
    "download_json": ("Download JSON", "下载 JSON"),
    "rule": ("Rule", "规则"),
    "role": ("Role", "角色"),
    "harm": ("Harm", "影响"),
    "count": ("Count", "次数"),
    "ranks": ("Ranks", "rank"),
    "first": ("First", "首次"),
    "note": ("Note", "说明"),
    "notes": ("To know", "须知"),
    "verdict_failed": ("Failed", "失败"),
    "verdict_stalled": ("Stalled", "停滞"),
    "verdict_degraded": ("Degraded", "变慢"),
    "verdict_healthy": ("Nothing wrong is known of", "未发现问题"),
    "verdict_unknown-failure": ("Failed of something no rule knows", "因未知原因失败"),
    "verdict_no-training-log": ("No training output in this", "其中没有训练输出"),
    "role_cause": ("cause", "原因"),
    "role_symptom": ("symptom", "症状"),
    "role_wrapper": ("wrapper", "启动器汇总"),
    "role_notice": ("notice", "提示"),
    "harm_fatal": ("fatal", "致命"),
    "harm_degrading": ("degrading", "拖慢"),
    "harm_harmless": ("harmless", "无害"),
    "harm_by-progress": ("cannot be told", "无法判断"),
    "total_steps": ("of {0} steps", "共 {0} 步"),
    "last_loss": ("Last loss", "最后损失"),
}

Say = Callable[..., str]


def speaker(language: str) -> Say:
    """`say(key, *values)`: the words in `language`, English where it is not known."""
    column = 1 if language.startswith("zh") else 0

    def say(key: str, *values: object) -> str:
        return _WORDS[key][column].format(*values)

    return say
