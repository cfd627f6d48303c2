"""What ``stallwatch alerts`` and the relay say, in the language of [ui]: answers, errors and remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch.config import Config

_WORDS = {
    "no-incident": (
        "no incident {name}; stallwatch alerts list --all shows their ids",
        "没有事件 {name}；stallwatch alerts list --all 列出全部编号",
    ),
    "several": (
        "{name} may be any of these; write more of one: {found}",
        "{name} 不唯一，请写得更完整：{found}",
    ),
    "over": ("nothing of {name} is open any more", "{name} 已没有未结束的事件"),
    "became": ("  {id}: {how} at {when}", "  {id}：{when} {how}"),
    "recovered": ("recovered", "已恢复"),
    "run-finished": ("the run finished", "任务已完成"),
    "run-failed": ("ended with the run: failed", "随任务结束：任务失败"),
    "run-stopped": ("ended with the run: stopped by hand", "随任务结束：被人为中断"),
    "unmended": ("not mended when the run ended", "任务结束时未解决"),
    "unknown": ("nobody watches it any more, its agent is gone", "监视进程已消失，无人监视"),
    "": ("over", "已结束"),
    "acknowledged": ("acknowledged {id}", "已确认 {id}"),
    "acknowledged-over": ("acknowledged {id} ({how} since {when})", "已确认 {id}（{when} 起{how}）"),
    "relay-without": (
        "THE RELAY STARTS WITHOUT THE CHATS LEFT OUT ABOVE: it tells {told} only",
        "relay 已启动，但上面被忽略的聊天渠道收不到消息：仅通知 {told}",
    ),
    "empty-note": ("TEXT is empty: write what to keep", "TEXT 为空：请写明备注内容"),
    "noted": ("noted with {id}", "已记录到 {id}"),
    "empty-open": (
        "no open incident; stallwatch alerts list --ended shows those that are over",
        "没有未结束的事件；stallwatch alerts list --ended 列出已结束的事件",
    ),
    "empty-ended": ("no incident is over", "没有已结束的事件"),
    "empty-all": ("no incident", "没有事件"),
    "more": (
        "only the newest {count} are shown; --run NAME shows one run's",
        "仅显示最新的 {count} 条；可用 --run NAME 限定任务",
    ),
    "head-id": ("id", "编号"),
    "head-severity": ("severity", "级别"),
    "head-status": ("status", "状态"),
    "head-since": ("since", "开始"),
    "head-until": ("until", "结束"),
    "head-acknowledged": ("acknowledged", "已确认"),
    "open": ("open", "未结束"),
    "unwatched": ("open, its agent is gone", "未结束，监视进程已消失"),
    "yes": ("yes", "是"),
    "silence": ("silence {number} until {until}: {what}", "静默 {number}，至 {until}：{what}"),
    "everything": ("everything", "全部"),
    "silenced": (
        "silence {number} until {until}; stallwatch alerts silence --end {number} ends it",
        "静默 {number}，至 {until}；stallwatch alerts silence --end {number} 可提前结束",
    ),
    "silenced-there": ("silence {id} in Alertmanager", "Alertmanager 中的静默 {id}"),
    "not-there": ("Alertmanager did not take the silence: {said}", "Alertmanager 未接受该静默：{said}"),
    "no-silence": (
        "no silence {number} is in force; stallwatch alerts list shows them",
        "没有生效中的静默 {number}；请用 stallwatch alerts list 查看",
    ),
    "silence-what": (
        "say what to silence: --run, --rule or --severity, or --all for everything",
        "请说明静默什么：--run、--rule 或 --severity；全部用 --all",
    ),
    "no-rule": (
        "no rule {rule} is known{near}; stallwatch rules list shows them",
        "没有规则 {rule}{near}；请用 stallwatch rules list 查看",
    ),
    "near": ("; did you mean {names}?", "；是否想写 {names}？"),
    "bad-time": (
        "--for {text}: give a time such as 30m, 2h or 1d",
        "--for {text}：请写成 30m、2h 或 1d 这样的时长",
    ),
    "missing": (
        "{name} is missing; pip install 'stallwatch[alerts]'",
        "缺少 {name}；请运行 pip install 'stallwatch[alerts]'",
    ),
    "no-database": ("the incident database cannot be opened ({said})", "无法打开事件数据库（{said}）"),
    "no-chat": (
        'no chat is configured; write urls = ["slack://…"] under [alerts] in stallwatch.toml'
        " or set STALLWATCH_ALERTS_URLS",
        '尚未配置聊天软件；请在 stallwatch.toml 的 [alerts] 下写 urls = ["slack://…"]，'
        "或设置 STALLWATCH_ALERTS_URLS",
    ),
    "not-taken": (
        "{failed} of {all} chats did not take the message",
        "{all} 个聊天中有 {failed} 个未接收消息",
    ),
    "no-message": ("no message", "没有消息"),
    "sent": ("sent {count}", "已发送 {count} 条"),
    "waiting": ("{count} wait for {chat}: {why}", "{chat} 有 {count} 条待发：{why}"),
    "why-unknown": (
        "no URL of this chat is configured here, so they cannot leave; "
        "the one they were kept for must be written exactly as it was. "
        "If it is gone for good: stallwatch alerts send --drop {name}",
        "此处未配置该聊天的地址，无法发出；地址须与保存消息时的写法完全一致。"
        "若不再使用：stallwatch alerts send --drop {name}",
    ),
    "dropped": ("dropped {count} for {chat}", "已放弃发往 {chat} 的 {count} 条"),
    "drop-none": (
        "--drop {name}: nothing waits for such a chat; stallwatch alerts send names those that may be meant",
        "--drop {name}：没有待发往该聊天的消息；stallwatch alerts send 会列出未配置的聊天",
    ),
    "drop-several": (
        "--drop {name}: more than one chat begins so; write more of it",
        "--drop {name}：不唯一，请写得更完整",
    ),
    "drop-configured": (
        "--drop {name}: {chat} is configured here, so its messages leave",
        "--drop {name}：{chat} 已在此处配置，其消息会发出",
    ),
    "why-refused": ("refused so far: {reason}", "一直未被接收：{reason}"),
    "why-pending": (
        "not tried yet: the chat's limits, or --wait was too short",
        "尚未发出：频率限制，或 --wait 太短",
    ),
    "why-quiet": ("quiet hours, until {when}", "免打扰时段，至 {when}"),
    "why-escalation": (
        "only if nobody acknowledges, at {when}",
        "仅在 {when} 仍无人确认时发出",
    ),
}


def language_of(config: Config) -> str:
    """That of the terminal."""
    return str(config["ui.language"])


def say(key: str, language: str, **given: object) -> str:
    """The sentence of that key."""
    return _WORDS[key][language.startswith("zh")].format(**given)
