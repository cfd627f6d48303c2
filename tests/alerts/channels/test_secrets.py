"""No failure of a chat reveals the URL: not in the error, its causes, a log, or standard error."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from channels_edge import Reply

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.notice import Notice
from stallwatch_alerts.trial import test_message as send_test_message

UUID = "693a91f6-7bbc-4bc4-97a0-0ec2f1fa5aaa"
# Host, URL, and the secrets in the URL.
SECRETS = {
    "slack": ("hooks.slack.com", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", ["TIiajkdnlaz"]),
    "slack-bot": ("slack.com", "slack://xoxb-1234567890-abcdefABCDEF/#training", ["abcdefABCDEF"]),
    "discord": ("discord.com", "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV-js", ["JHMHI8qBe7"]),
    "telegram": (
        "api.telegram.org",
        "tgram://123456789:AbCdEfGh-IjKlMnOpQrStUvWxYz012345678/42",
        ["AbCdEfGh-I"],
    ),
    "feishu": ("open.feishu.cn", f"feishu://{UUID}?secret=q3Zb8mPfXw2LkVn5", [UUID, "q3Zb8mPfXw2LkVn5"]),
    "lark": ("open.larksuite.com", f"lark://{UUID}?secret=q3Zb8mPfXw2LkVn5", [UUID, "q3Zb8mPfXw2LkVn5"]),
    "dingtalk": (
        "oapi.dingtalk.com",
        "dingtalk://SEC000c65eb70bbd21d@566cc69da782ec33b0a1",
        ["566cc69da782ec33b0a1", "SEC000c65eb70bbd21d"],
    ),
    "wecom": ("qyapi.weixin.qq.com", f"wecombot://{UUID}", [UUID]),
    "teams": (
        "prod-12.westeurope.logic.azure.com",
        "workflows://prod-12.westeurope.logic.azure.com:443/3f1ac0b7e2d94f1b8c1d/iXkQ2mR7sUv-w8yZ0aBcDeFg_1h",
        ["3f1ac0b7e2d94f1b8c1d", "iXkQ2mR7sUv"],
    ),
    "ntfy": ("ntfy.sh", "ntfy://s3cr3t-topic-name", ["s3cr3t-topic-name"]),
    "ntfy-private": (
        "ntfy.example.org",
        "ntfys://bob:pa55word-1@ntfy.example.org/s3cr3t-topic-name",
        ["pa55word-1", "s3cr3t-topic-name"],
    ),
    "json": (
        "monitor.example.org",
        "jsons://bob:pa55word-1@monitor.example.org/hooks/s3cr3t-path?+X-Token=t0ken-in-header",
        ["pa55word-1", "s3cr3t-path", "t0ken-in-header"],
    ),
}
EVERY = pytest.mark.parametrize("name", SECRETS)


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Yield all log records of all libraries at any level, as a tool that collects everything gets them."""
    said: list[str] = []

    class Everything(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(self.format(record))

    handler = Everything(0)
    loggers = [
        logging.getLogger(name) for name in ("", "apprise", "urllib3", "urllib3.connectionpool", "requests")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
    logging.getLogger().setLevel(0)
    yield said
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


def everything_about(error: BaseException) -> str:
    """Return a traceback with variables, and all chained exceptions, hidden or not."""
    found, seen, todo = [], set(), [error]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        shown = traceback.TracebackException.from_exception(one, capture_locals=False)
        found += [*shown.format(), repr(one), repr(one.args), repr(vars(one))]
        todo += [other for other in (one.__cause__, one.__context__) if other is not None]
    return "\n".join(found)


def failures(edge: Any, host: str) -> Iterator[str]:
    """Yield every way to fail, one after the other."""
    echo: list[str] = []

    def protocol(call: Any) -> Reply:
        echo[:] = [f"{call.path} {call.query} {dict(call.headers)} {call.body!r}"]
        return Reply(500, f"<p>error at {echo[0]}</p>")  # some servers echo the request

    server = edge.serve(host, protocol)
    yield "echo"
    for status in (301, 400, 401, 403, 404, 410, 429, 502):
        server.force = [Reply(status, "{}", {"Location": "http://127.0.0.1:1/x"})] * 3
        yield str(status)
    server.force = [Reply(200, "{")] * 3
    yield "malformed"
    edge.down.add(host)
    yield "dns"


@EVERY
def test_failed_delivery_does_not_reveal_the_url(
    name: str, edge: Any, notice: Notice, heard: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    host, url, secrets = SECRETS[name]
    channel = AppriseChannel(url)
    came_out = [repr(channel), channel.name]
    failed = 0
    for _way in failures(edge, host):
        try:
            channel.send(notice)
        except ChannelError as error:
            failed += 1
            came_out.append(everything_about(error))
        came_out += [str(vars(item)) for item in send_test_message([url], "zh")]
    assert failed >= 8
    captured = capsys.readouterr()
    text = "\n".join([*came_out, *heard, captured.out, captured.err])
    for secret in secrets:
        assert secret not in text, re.findall(f".*{secret}.*", text)[:3]


@EVERY
def test_invalid_url_is_not_revealed(name: str, heard: list[str]) -> None:
    _, url, secrets = SECRETS[name]
    wrong = url.replace("://", "://!!", 1) + "/%%?template=nowhere&mode=x&to=!"
    try:
        came_out = repr(AppriseChannel(wrong))
    except ChannelError as error:
        came_out = everything_about(error)
    for secret in secrets:
        assert secret not in came_out + "\n".join(heard)
