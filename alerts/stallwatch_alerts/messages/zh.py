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
    with_run={
        "run-failed": "随任务结束（任务失败）：{title}",
        "run-stopped": "随任务结束（被人为中断）：{title}",
        "unmended": "任务结束时未解决：{title}",
    },
    over={
        "": "不再停滞",
        "run-finished": "停滞结束：任务已完成",
        "run-failed": "停滞 {duration}后任务失败，随任务结束",
        "run-stopped": "停滞 {duration}后被人为中断",
        "unknown": "任务曾停滞",
    },
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
    with_code="{ending}，退出码 {code}",
    in_rank="{title}（{rank}）",
    more_than="超过 {duration}",
    stall_sentence="已 {duration}没有完成任何一步；按这个任务自己的节奏，上限是 {threshold}。",
    stall_sentence_start="已 {duration}没有完成任何一步；启动阶段的时限（{threshold}）已过。",
    stall_sentence_learning="已 {duration}没有完成任何一步；对这个任务的观察还太短，不足以知道它的节奏，"
    "在此之前上限是 {threshold}。",
    stall_sentence_plain="已 {duration}没有完成任何一步。",
    recovered_sentence="训练步又在前进。",
    over_sentence={
        "": "此问题已结束。",
        "recovered": "此问题已结束。",
        "run-finished": "任务已完成。",
        "run-failed": "任务已失败。",
        "run-stopped": "任务被人为中断（Ctrl-C）。",
        "unmended": "任务已结束，此问题未解决。",
        "unknown": "报告此问题的监视进程已被终止，或其主机已停机。任务是否仍在运行不得而知："
        "请检查任务，并用 stallwatch tail 重新监视。",
    },
    unwatched="已无人监视：{title}",
    unwatched_after="发现监视进程消失时，距问题开始已 {duration}。",
    lasted="持续了 {duration}。",
    run="任务：{run}",
    on_host="任务：{run}（主机 {host}）",
    place="位置：",
    last_loss="最近的 loss {loss}",
    comma="，",
    cause="可能的原因：{title}（{rule}），{harm}",
    stall_cause="当时的原因：{title}",
    rank_gone="某个 rank 的进程已不在，其余 rank 仍在运行",
    rank_gone_why="没有谁通知其余 rank：它们会在集合通信里等它，直到超时。",
    rank_gone_fixes=(  # en.py names the sources
        "是否因内存不足被杀？在其主机上运行 dmesg -T | grep -i 'killed process'（需 root），"
        "或查看作业、Pod 的状态。",
        "查看它自己的最后几行输出：在任务页面上，或任务目录的 ranks/ 下。",
        "从最近的检查点重新启动；启动器应在一个 rank 退出时结束全部 rank："
        "torchrun 即如此，srun 需加 --kill-on-bad-exit=1。",
    ),
    evidence="证据：",
    fixes="处理办法：",
    look="进一步查看：",
    rank_pid="rank {rank}（PID {pid}）",
    since="{sentence}最后一步在 {when}。",
    also_seen="同时出现（背景信息）：{rules}",
    after_stall="停滞 {duration}后{title}",
    ended="结束方式：{ending}",
    exit_code="退出码 {code}",
    ran_for="运行了 {duration}",
    test_title="[stallwatch] 测试消息",
    test_text="Stallwatch 可以发到这个频道。任务出现问题时，消息会发到这里。",
    and_others="{title}（另有 {count} 条）",
    also="同时发生：",
    further="……另有 {count} 条",
    tally={"critical": "条严重", "warning": "条警告", "info": "条提示", "resolved": "条已结束"},
    in_all="合计：{tally}。",
    late="这条消息写于 {when}，晚到了 {duration}：此前频道中断、繁忙或免打扰。",
    expired="有 {count} 条消息一天之内未能送达，已放弃。用 stallwatch alerts deliveries 查看。",
    escalated="{title}（{duration} 内无人确认）",
    acknowledge="由您处理时请确认：stallwatch alerts ack {id}",
    rule_link="规则：",
    page_link="页面：",
    alert_over="已结束：{title}",
    alerts={
        "StallwatchStalled": "停滞：超过了这个任务自己的节奏所允许的时间",
        "StallwatchRunFailed": "任务异常结束",
        "StallwatchAgentGone": "已无人监视：监视进程没有报告任务如何结束就消失了",
        "StallwatchRankGone": "某个 rank 的进程已不在，其他 rank 会一直等它",
        "StallwatchLossNotFinite": "loss 为 NaN 或无穷大",
        "StallwatchLossScaleCollapsed": "几乎每一步都溢出，loss scale 已降到最低",
        "StallwatchHostMemoryNearLimit": "主机内存接近上限，并且还在增长",
        "StallwatchAcceleratorMemoryNearLimit": "rank {rank} 的显存即将耗尽",
        "StallwatchInvalidationsWithoutProgress": "ZeRO-3 trace cache 不断失效，训练没有前进",
        "StallwatchSlowdown": "训练变慢：每步用时比过去一小时长一半以上",
        "StallwatchStragglerRank": "rank {rank} 落后于其他 rank",
        "StallwatchCheckpointTooOld": "最近的检查点太旧，此时崩溃会丢失全部进度",
        "StallwatchLogFlood": "日志量激增，是平时的十倍以上",
        "StallwatchHalfBlind": "有输出未被读取，其中的问题无法得知",
    },
)
