"""The words of the states of a run, and of the one sentence on each, in English and Chinese."""

from __future__ import annotations

WORDS: dict[str, tuple[str, str]] = {
    "starting": ("starting", "启动中"),
    "training": ("training", "训练中"),
    "waiting": ("waiting", "等待中"),
    "stalled": ("stalled", "停滞"),
    "degraded": ("degraded", "变慢"),
    "failed": ("failed", "失败"),
    "interrupted": ("interrupted", "已中断"),
    "finished": ("finished", "已完成"),
    "unwatched": ("not watched", "已停止监视"),
    "stale": ("stale", "失联"),
    "all_well": ("Training: step {0} was {1} ago", "训练中：第 {0} 步完成于 {1} 前"),
    "is_waiting": ("Waiting: no step for {0} after step {1}", "等待中：第 {1} 步之后已有 {0} 没有新的一步"),
    "is_waiting_why": (
        "So few steps tell no rhythm yet: an alarm comes at {0} if none follows before.",
        "步数太少，尚不足以得知节奏：若到 {0} 仍无新的一步，就会告警。",
    ),
    "is_starting": ("Starting: no step yet", "启动中：还没有完成任何一步"),
    "is_finished": ("Finished at step {0}", "已完成，到第 {0} 步"),
    "is_failed": ("Failed at step {0}", "失败，停在第 {0} 步"),
    "is_interrupted": ("Stopped by hand at step {0}", "被手动中断，停在第 {0} 步"),
    "is_unwatched": ("No longer watched: step {0} was the last seen", "已停止监视：最后看到第 {0} 步"),
    "is_stale": ("No word from the agent for {0}", "agent 已失联 {0}"),
    "is_stale_why": (
        "What this page shows is as old as that. The agent, or its host, has ended or cannot be reached.",
        "本页内容停留在那时。agent 或其主机已退出或不可达。",
    ),
    "is_degraded": ("Slower than it was", "比之前变慢"),
    "is_stalled": ("Stalled: no step for {0}", "停滞：{0} 没有新的一步"),
}
