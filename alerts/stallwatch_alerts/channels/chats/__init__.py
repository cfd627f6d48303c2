"""Support for individual chat services. Each service has its own module.

A module writes requests as the chat's documentation describes and interprets the responses. Apprise always
parses the URL. Stallwatch writes the request itself if Apprise 2.2.0 does not follow the chat's
documentation. For example, Apprise treats every response of Feishu, Lark, DingTalk, and WeCom with status 200
as a success, although these chats also report errors with status 200. Apprise cannot sign requests to Feishu
and Lark, discards ``Retry-After`` and all chats' error codes, and sends plain text to chats that support
cards.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from apprise.plugins.dingtalk import NotifyDingTalk
from apprise.plugins.discord import NotifyDiscord
from apprise.plugins.feishu import NotifyFeishu
from apprise.plugins.lark import NotifyLark
from apprise.plugins.slack import NotifySlack, SlackMode
from apprise.plugins.telegram import NotifyTelegram
from apprise.plugins.wecombot import NotifyWeComBot
from apprise.plugins.workflows import NotifyWorkflows

from stallwatch_alerts.channels.chats.base import Chat
from stallwatch_alerts.channels.chats.dingtalk import DingTalk
from stallwatch_alerts.channels.chats.discord import Discord
from stallwatch_alerts.channels.chats.feishu import Feishu
from stallwatch_alerts.channels.chats.slack import Slack
from stallwatch_alerts.channels.chats.teams import Teams
from stallwatch_alerts.channels.chats.telegram import Telegram
from stallwatch_alerts.channels.chats.wecom import WeCom


def chat_of(plugin: Any, url: str) -> Chat | None:
    """Return the chat for the Apprise plugin of a URL, or `None` if Apprise must send the message.

    Apprise sends messages to every other service, and to URLs with features that only Apprise supports:
    custom templates, Slack workflows, Slack users by email address, and the search for the owner of a
    Telegram bot.
    """
    if isinstance(plugin, (NotifyFeishu, NotifyLark)):
        return Feishu(plugin, secret=parse_qs(urlsplit(url).query).get("secret", [""])[0])
    if isinstance(plugin, NotifyDingTalk):
        return DingTalk(plugin)
    if isinstance(plugin, NotifyWeComBot):
        return WeCom(plugin)
    if getattr(plugin, "template", None):
        return None
    if isinstance(plugin, NotifyDiscord):
        return Discord(plugin)
    if isinstance(plugin, NotifyWorkflows):
        return Teams(plugin)
    if isinstance(plugin, NotifyTelegram) and plugin.targets:
        return Telegram(plugin)
    if isinstance(plugin, NotifySlack) and plugin.mode in (
        SlackMode.WEBHOOK,
        SlackMode.WEBHOOK_GOV,
        SlackMode.BOT,
    ):
        return Slack.of(plugin)
    return None
