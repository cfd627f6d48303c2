"""The fixed words of the reports, in English and Chinese."""

from __future__ import annotations

_WORDS: dict[str, tuple[str, str]] = {
    # verdicts
    "failed": ("FAILED", "失败"),
    "stalled": ("STALLED", "停滞"),
    "degraded": ("DEGRADED", "性能下降"),
    "healthy": ("HEALTHY", "正常"),
    "unknown-failure": ("FAILED, CAUSE UNKNOWN", "失败，原因未知"),
    "no-training-log": ("NO TRAINING LOG", "不是训练日志"),
    # what a verdict without a primary cause means
    "healthy.text": ("Nothing in this log says that the run is in trouble.", "日志中没有发现训练异常。"),
    "mid-run.text": ("The log ends in mid-run.", "日志停在训练途中。"),
    "mid-run-of.text": (
        "Nothing says that the run is in trouble, but its log ends in mid-run, at step {steps}.",
        "没有发现训练异常，但日志停在训练途中：第 {steps} 步。",
    ),
    "mid-run-at.text": (
        "Nothing says that the run is in trouble, but its log ends at step {steps} without a word of an end.",
        "没有发现训练异常，但日志停在第 {steps} 步，没有任何结束信息。",
    ),
    "behind-finished.text": (
        "The run finished, but {ranks} ended long before the others.",
        "训练已结束，但 {ranks} 远早于其他 rank 停止。",
    ),
    "behind.text": (
        "No failure was found in this log, but {ranks} ended long before the others.",
        "日志中没有发现失败，但 {ranks} 远早于其他 rank 停止。",
    ),
    "behind-unknown.text": (
        "{ranks} ended before the others, and no rule of the catalogue knows why.",
        "{ranks} 早于其他 rank 停止，规则库中没有与之对应的原因。",
    ),
    "unknown-failure.text": (
        "The run failed, and no rule of the catalogue knows why.",
        "训练失败，规则库中没有与之对应的原因。",
    ),
    "no-training-log.text": (
        "Nothing that a training run prints was recognised in this text.",
        "文本中没有识别出任何训练输出。",
    ),
    "asked-to-end.text": (
        "A signal asked the run to end, and it did; nothing else is wrong in this log.",
        "训练应信号要求结束，日志中没有其他异常。",
    ),
    "interrupted": ("STOPPED BY HAND", "人为中断"),
    "interrupted.text": (
        "Somebody stopped the run (Ctrl-C, SIGINT); nothing else is wrong in this log.",
        "训练被人为中断（Ctrl-C、SIGINT），日志中没有其他异常。",
    ),
    "record-ends": ("RECORD ENDS", "记录中断"),
    "record-ends.text": (
        "The agent's record ends there; how the run ended is not known.",
        "agent 的记录到此为止，不知道任务如何结束。",
    ),
    "stalled.text": ("The run has stopped advancing.", "训练已停止推进。"),
    "failed.text": ("The run failed.", "训练失败。"),
    "degraded.text": ("The run goes on, but not as well as before.", "训练仍在继续，但状态变差。"),
    # roles and harm
    "cause": ("cause", "原因"),
    "symptom": ("symptom", "表象"),
    "wrapper": ("launcher's summary", "启动器汇总"),
    "notice": ("notice", "提示"),
    "fatal": ("fatal", "致命"),
    "degrading": ("degrading", "有损"),
    "harmless": ("harmless here", "此处无害"),
    "by-progress": ("depends on progress", "取决于是否推进"),
    # headings
    "primary": ("Cause", "原因"),
    "jobs": ("Jobs", "作业"),
    "job": ("Job", "作业"),
    "last-step": ("Last step", "最后一步"),
    "last-written": ("Last written", "最后写入"),
    "files-head": ("Files", "文件数"),
    "job-other": ("other files", "其他文件"),
    "jobs-told": (
        "{count} jobs by the names of their files, the newest first. This report is of {job}, {why}.",
        "按文件名分为 {count} 个作业，最新的在前。以下是 {job} 的报告：{why}。",
    ),
    "jobs-one-in-trouble": ("the only one that is in trouble", "唯一出问题的作业"),
    "jobs-newest-in-trouble": (
        "the newest of {count} that are in trouble",
        "{count} 个出问题的作业中最新的一个",
    ),
    "jobs-newest": ("the newest; none is in trouble", "最新的作业；没有作业出问题"),
    "jobs-newest-training": (
        "the newest that is a training; none is in trouble",
        "最新的训练作业；没有作业出问题",
    ),
    "jobs-more": ("… and {count} older: {told}", "… 另有 {count} 个更早的作业：{told}"),
    "jobs-another": ("Another one: {command}", "查看其他作业：{command}"),
    "evidence": ("Evidence", "证据"),
    "why": ("Why", "为什么"),
    "fixes": ("What to change", "如何处理"),
    "findings": ("Other findings", "其他发现"),
    "unknown": ("Exceptions that no rule knows", "规则库未收录的异常"),
    "new-lines": ("New before the end", "结束前新出现的日志行"),
    "next-frame": (
        "Look at this line first; the report without --brief tells all that was found.",
        "先看这一行；不加 --brief 的报告列出全部发现。",
    ),
    "next-report": (
        "Read the lines before it; the report without --brief tells all that was found.",
        "看它之前的日志；不加 --brief 的报告列出全部发现。",
    ),
    "next-nearest": (
        "No rule knows it; what looks most like it: `stallwatch rules show {rule}`.",
        "规则库未收录；最接近的一页：`stallwatch rules show {rule}`。",
    ),
    "next-draft": (
        "Once you know the cause: `stallwatch rules new --from LOG` drafts a rule page for it.",
        "查明原因后，可用 `stallwatch rules new --from LOG` 为它起草一页规则。",
    ),
    "nearest": ("looks most like", "最接近的规则"),
    "progress": ("Progress", "进度"),
    "file-head": ("File", "文件"),
    "verdict": ("Verdict", "结论"),
    "environment": ("Environment", "环境"),
    "digest": ("Ranks", "各 rank"),
    "notes": ("Notes", "说明"),
    "root-cause": ("Root cause", "根本原因"),
    "explained": ("How the verdict came about", "判定过程"),
    "ending": ("Ending", "结束方式"),
    # charts
    "charts": ("In numbers", "数值曲线"),
    "loss": ("Loss", "损失"),
    "grad_norm": ("Gradient norm", "梯度范数"),
    "learning_rate": ("Learning rate", "学习率"),
    "loss_scale": ("Loss scale", "loss scale"),
    "step_seconds": ("Seconds per step", "每步秒数"),
    # levels of log lines
    "error": ("error", "错误"),
    "warning": ("warning", "警告"),
    "info": ("info", "信息"),
    # fragments
    "rule": ("rule", "规则"),
    "confidence": ("confidence", "置信度"),
    "rank": ("rank", "rank"),
    "ranks": ("ranks", "ranks"),
    "first-of": ("{one}, the first of {ranks}", "{one}（{ranks} 中最早）"),
    "step": ("step", "步"),
    "of": ("of", "/"),
    "first": ("first", "首次"),
    "times": ("times", "次"),
    "earlier": ("earlier", "之前"),
    "later": ("later", "之后"),
    "last-loss": ("last loss", "最后的 loss"),
    "stalled-after": ("no step after step", "停在第几步："),
    "finished": ("finished", "已完成"),
    "root": ("began with", "最初的异常"),
    "frames-cut": ("the text ends before the exception", "文本在异常信息之前结束"),
    "files": ("files", "个文件"),
    "file": ("file", "个文件"),
    "lines": ("lines", "行"),
    "line": ("line", "行"),
}


def word(key: str, language: str = "en") -> str:
    """The word for ``key`` in the language; English for any that is not Chinese."""
    english, chinese = _WORDS[key]
    return chinese if language.startswith("zh") else english
