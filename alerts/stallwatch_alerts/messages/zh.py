"""The Chinese sentences."""

from __future__ import annotations

from stallwatch_alerts.messages.words import Words


def duration(seconds: float) -> str:
    """``42 秒``, ``3 分 10 秒``, ``1 小时 5 分``, ``2 天 3 小时``."""
    whole = max(0, round(seconds))
    units = ((86400, "天", 3600, "小时"), (3600, "小时", 60, "分"), (60, "分", 1, "秒"))
    for size, unit, below, smaller in units:
        if whole >= size:
            count, rest = whole // size, whole % size // below
            return f"{count} {unit} {rest} {smaller}" if rest else f"{count} {'分钟' if size == 60 else unit}"
    return f"{whole} 秒"


WORDS = Words(
    language="zh",
    duration=duration,
    rank="rank {rank}",
    step="第 {step} 步",
    step_of="第 {step} 步（共 {total} 步）",
    phases={
        "init": "启动",
        "train": "训练",
        "eval": "评估",
        "save": "保存检查点",
        "rollout": "采样",
        "weight-sync": "权重同步",
        "idle": "空闲",
    },
    harms={"fatal": "致命", "degrading": "拖慢训练", "harmless": "无害", "by-progress": "影响尚不明确"},
    stalled="停滞：已 {duration}没有新的步",
    stalled_after="停滞：{step}之后已 {duration}没有新的步",
    stalled_in_phase="停滞：{phase}阶段已 {duration}没有进展",
    recovered="已恢复，停滞了 {duration}",
    finding="{harm}：{title}",
    finding_over="已结束：{title}",
    over={"": "不再停滞", "run-finished": "停滞结束：任务已完成", "run-failed": "停滞结束：任务已失败"},
    endings={
        "finished": "已完成，用时 {duration}",
        "failed": "失败",
        "oom-killed": "被内核 OOM killer 杀死",
        "killed": "被 {signal} 终止",
        "time-limit": "到达时间上限而停止",
        "interrupted": "被中断",
        "unknown": "已结束，原因不明",
    },
    because="{ending}：{title}",
    in_rank="{title}（{rank}）",
    closed="已关闭：{title}",
    stall_sentence="已 {duration}没有完成任何一步；按这个任务自己的节奏，上限是 {threshold}。",
    stall_sentence_start="已 {duration}没有完成任何一步；启动阶段的时限（{threshold}）已过。",
    stall_sentence_plain="已 {duration}没有完成任何一步。",
    recovered_sentence="训练步又在前进。",
    over_sentence={
        "": "此问题已结束。",
        "recovered": "此问题已结束。",
        "run-finished": "任务已完成。",
        "run-failed": "任务已失败；结束原因另发一条消息。",
    },
    run="任务：{run}",
    on_host="任务：{run}（主机 {host}）",
    place="位置：",
    last_loss="最近的 loss {loss}",
    comma="，",
    cause="可能的原因：{title}（{rule}），{harm}",
    stall_cause="当时的原因：{title}",
    evidence="证据：",
    fixes="处理办法：",
    ended="结束方式：{ending}",
    exit_code="退出码 {code}",
    ran_for="运行了 {duration}",
    test_title="[stallwatch] 测试消息",
    test_text="Stallwatch 可以发到这个频道。任务出现问题时，消息会发到这里。",
)
