"""Every chat accepts short and long messages, and its refusals become the right errors."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from channels_chats import CHATS
from channels_edge import Reply, reply
from channels_protocols import dingtalk

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.channels.http import Answer, retry_after
from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import Notice

EVERY = pytest.mark.parametrize("name", CHATS)
LONG = [
    "显存不足，请减小批大小。" * 200,
    "    " + "`_*[x](y)*_` <at id=all> & \\ " * 200,
    "👩‍👩‍👧‍👦é" * 900,
    "a" * 40_000,
    "\n\n".join("word_with_marks * and (brackets) " * 9 for _ in range(300)),
    "\n".join(f"    line {number} of a trace" for number in range(4000)),
]


@EVERY
def test_each_target_accepts_a_message(name: str, edge: Any, notice: Notice) -> None:
    given = CHATS[name]
    server = edge.serve(given.host, given.protocol)
    AppriseChannel(given.url).send(notice)
    assert len(server.taken) == (2 if name in ("slack-bot", "telegram") else 1)
    for call in server.taken:
        for word in ("160 of 900", "myrun", "expected module 19", "watch.example.org"):
            assert word in str(call.json), word


@EVERY
@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_messages_of_any_length_are_accepted_and_keep_the_link(
    name: str, text: str, edge: Any, notice: Notice
) -> None:
    given = CHATS[name]
    server = edge.serve(given.host, given.protocol)
    title = "[myrun] " + "标题title👍🏽" * 30
    long = f"{text}\n\nDashboard: https://watch.example.org/run?run=myrun"
    AppriseChannel(given.url).send(Notice(Message(title, long), "warning", notice.facts))
    assert server.taken and len(server.taken) == len(server.calls)
    assert "https://watch.example.org/run" in str(server.taken[0].json)


@EVERY
def test_wrong_secret_has_its_error_code(name: str, edge: Any, notice: Notice) -> None:
    given = CHATS[name]
    edge.serve(given.host, given.protocol)
    with pytest.raises(ChannelError) as caught:
        AppriseChannel(given.wrong).send(notice)
    assert caught.value.code == given.code


@pytest.mark.parametrize(
    "name", [name for name in CHATS if name != "teams"]
)  # a workflow may give any answer
def test_html_answer_with_status_200_is_not_a_delivery(name: str, edge: Any, notice: Notice) -> None:
    """A captive portal or a proxy with a log-in page sends such an answer."""
    given = CHATS[name]
    server = edge.serve(given.host, given.protocol)
    server.force = [Reply(200, "<html>please log in</html>")]
    with pytest.raises(ChannelError) as caught:
        AppriseChannel(given.url).send(notice)
    assert caught.value.code == "malformed"


RATES = {
    "slack": (Reply(429, "rate_limited", {"Retry-After": "7"}), 7.0),
    "slack-bot": (reply({"ok": False, "error": "ratelimited"}, 429, retry_after="7"), 7.0),
    "discord": (reply({"message": "You are being rate limited.", "retry_after": 1.337}, 429), 1.337),
    "telegram": (
        reply(
            {
                "ok": False,
                "error_code": 429,
                "description": "Too Many Requests: retry after 34",
                "parameters": {"retry_after": 34},
            },
            429,
        ),
        34.0,
    ),
    "feishu": (reply({"code": 11232, "msg": "frequency limited"}), 60.0),
    "lark": (reply({"code": 11232, "msg": "frequency limited"}), 60.0),
    "dingtalk": (reply({"errcode": 130101, "errmsg": "send too fast, exceed 20 times per minute"}), 600.0),
    "wecom": (reply({"errcode": 45009, "errmsg": "api freq out of limit"}), 60.0),
    "teams": (Reply(429, "", {"Retry-After": "12"}), 12.0),
}


@pytest.mark.parametrize("name", RATES)
def test_rate_limit_sets_the_waiting_time(name: str, edge: Any, notice: Notice) -> None:
    given = CHATS[name]
    said, seconds = RATES[name]
    edge.serve(given.host, given.protocol).force = [said]
    channel = AppriseChannel(given.url)
    with pytest.raises(ChannelError) as caught:
        channel.send(notice)
    assert caught.value.retry_after == seconds
    channel.send(notice)


@pytest.mark.parametrize("status", [429, 400])
def test_rate_limit_of_the_feishu_gateway_is_read_from_its_header(
    status: int, edge: Any, notice: Notice
) -> None:
    said = json.dumps({"code": 99991400, "msg": "request trigger frequency limit"})
    given = CHATS["feishu"]
    edge.serve(given.host, given.protocol).force = [Reply(status, said, {"x-ogw-ratelimit-reset": "52"})]
    with pytest.raises(ChannelError) as caught:
        AppriseChannel(given.url).send(notice)
    assert caught.value.retry_after is not None and caught.value.retry_after >= 52


def test_retry_skips_targets_that_have_the_message(edge: Any, notice: Notice) -> None:
    given = CHATS["telegram"]
    server = edge.serve(given.host, given.protocol)
    server.force = [None, Reply(502)]
    channel = AppriseChannel(given.url)
    with pytest.raises(ChannelError):
        channel.send(notice)
    channel.send(notice)
    assert sorted(call.json["chat_id"] for call in server.taken) == [-1001234, 42]


@EVERY
@pytest.mark.parametrize("status", [404, 500, 503])
def test_other_http_errors_are_named(name: str, status: int, edge: Any, notice: Notice) -> None:
    given = CHATS[name]
    edge.serve(given.host, given.protocol).force = [Reply(status, "<html>gone</html>")]
    with pytest.raises(ChannelError) as caught:
        AppriseChannel(given.url).send(notice)
    assert caught.value.code == f"http-{status}"
    assert "html" not in str(caught.value)


def test_dingtalk_mentions_appear_in_the_text(edge: Any, notice: Notice) -> None:
    server = edge.serve(CHATS["dingtalk"].host, dingtalk)
    AppriseChannel(CHATS["dingtalk"].url).send(notice)
    body = server.taken[0].json
    assert body["at"] == {"atMobiles": ["13800001111"], "isAtAll": False}
    assert "@13800001111" in body["markdown"]["text"]


@pytest.mark.parametrize(
    ("date", "seconds"), [("Fri, 20 Nov 2026 10:00:00 GMT", 30.0), ("", 0.0), ("yesterday", 0.0)]
)
def test_retry_after_date_is_relative_to_the_clock_of_the_server(
    monkeypatch: pytest.MonkeyPatch, date: str, seconds: float
) -> None:
    """The local clock may be a day ahead."""
    answer = Answer(429, {"Retry-After": "Fri, 20 Nov 2026 10:00:30 GMT", "Date": date})
    monkeypatch.setattr(time, "time", lambda: 1_795_255_200.0)  # 2026-11-21 10:00:00
    assert retry_after(answer) == seconds
