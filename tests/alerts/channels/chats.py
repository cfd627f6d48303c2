"""Each chat with its protocol, a URL that it accepts, and a URL that it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from channels_protocols import (
    DINGTALK,
    DINGTALK_SECRET,
    DISCORD,
    FEISHU,
    FEISHU_SECRET,
    SLACK,
    TEAMS,
    TELEGRAM,
    WECOM,
    dingtalk,
    discord,
    feishu,
    slack,
    slack_bot,
    teams,
    telegram,
    wecom,
)


@dataclass(frozen=True)
class Given:
    """A chat under test."""

    host: str
    protocol: Any
    url: str
    wrong: str  #: the URL with another secret
    code: str  #: error code of the chat for the wrong secret


CHATS = {
    "slack": Given(
        "hooks.slack.com",
        slack,
        f"slack://{SLACK[0]}/{SLACK[1]}/{SLACK[2]}/#training",
        f"slack://{SLACK[0]}/{SLACK[1]}/XXXXkdnlazkcOXrIdevi7FQX",
        "invalid_token",
    ),
    "slack-native": Given(
        "hooks.slack.com",
        slack,
        f"https://hooks.slack.com/services/{SLACK[0]}/{SLACK[1]}/{SLACK[2]}",
        f"https://hooks.slack.com/services/{SLACK[0]}/{SLACK[1]}/XXXXkdnlazkcOXrIdevi7FQX",
        "invalid_token",
    ),
    "slack-bot": Given(
        "slack.com",
        slack_bot,
        "slack://xoxb-1234567890-abcdefABCDEF/#training/+C0123ABCD",
        "slack://xoxb-1234567890-XXXXXXABCDEF/#training",
        "invalid_auth",
    ),
    "discord": Given(
        "discord.com",
        discord,
        f"discord://{DISCORD[0]}/{DISCORD[1]}",
        f"discord://{DISCORD[0]}/XXXXX8qBe7bk2ZwO5U711o3dV-js",
        "10015",
    ),
    "telegram": Given(
        "api.telegram.org",
        telegram,
        f"tgram://{TELEGRAM}/-1001234/42",
        "tgram://123456789:XXXXXfGh-IjKlMnOpQrStUvWxYz012345678/42",
        "401",
    ),
    "feishu": Given(
        "open.feishu.cn",
        feishu,
        f"feishu://{FEISHU}?secret={FEISHU_SECRET}",
        f"feishu://{FEISHU}?secret=XXXXXXPfXw2LkVn5",
        "19021",
    ),
    "feishu-native": Given(
        "open.feishu.cn",
        feishu,
        f"https://open.feishu.cn/open-apis/bot/v2/hook/{FEISHU}?secret={FEISHU_SECRET}",
        "https://open.feishu.cn/open-apis/bot/v2/hook/XXXX3f39-1a2b-4c3d-9e8f-aa11bb22cc33",
        "19001",
    ),
    "lark": Given(
        "open.larksuite.com",
        feishu,
        f"lark://{FEISHU}?secret={FEISHU_SECRET}",
        f"lark://{FEISHU}",
        "19021",
    ),
    "dingtalk": Given(
        "oapi.dingtalk.com",
        dingtalk,
        f"dingtalk://{DINGTALK_SECRET}@{DINGTALK}/13800001111",
        f"dingtalk://SECXXXX65eb70bbd21d@{DINGTALK}",
        "sign",
    ),
    "dingtalk-native": Given(
        "oapi.dingtalk.com",
        dingtalk,
        f"https://oapi.dingtalk.com/robot/send?access_token={DINGTALK}&secret={DINGTALK_SECRET}",
        "https://oapi.dingtalk.com/robot/send?access_token=XXXX69da782ec33b0a1",
        "300005",
    ),
    "wecom": Given(
        "qyapi.weixin.qq.com",
        wecom,
        f"wecombot://{WECOM}",
        "wecombot://XXXXXXX6-7bbc-4bc4-97a0-0ec2f1fa5aaa",
        "93000",
    ),
    "teams": Given(
        "prod-12.westeurope.logic.azure.com",
        teams,
        f"workflows://prod-12.westeurope.logic.azure.com:443/{TEAMS[0]}/{TEAMS[1]}",
        f"workflows://prod-12.westeurope.logic.azure.com:443/{TEAMS[0]}/XXXXX2mR7sUv-w8yZ0aBcDeFg",
        "DirectApiAuthorizationRequired",
    ),
}
