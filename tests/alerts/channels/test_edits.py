"""New facts about an open incident edit its message if the chat can; its end replies to the message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from channels_chats import CHATS
from channels_edge import reply

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import Notice

NAME = "myrun/stall/x/1"
EDITABLE = ("slack-bot", "discord", "telegram")


@pytest.fixture
def opened(notice: Notice) -> Notice:
    return replace(notice, facts={**notice.facts, "id": NAME})


@pytest.fixture
def more(opened: Notice) -> Notice:
    return replace(opened, message=Message(opened.message.title, "Rank 1 is at train.py:5."))


@pytest.fixture
def closed(opened: Notice) -> Notice:
    facts = {**opened.facts, "status": "resolved"}
    return Notice(Message("[myrun] recovered", "Steps advance again."), "success", facts)


@pytest.mark.parametrize("name", EDITABLE)
def test_first_message_is_edited_in_each_target(name: str, edge: Any, opened: Notice, more: Notice) -> None:
    server = edge.serve(CHATS[name].host, CHATS[name].protocol)
    channel = AppriseChannel(CHATS[name].url)
    assert not channel.has_message(NAME)
    channel.send(opened)
    sent = len(server.taken)
    assert channel.has_message(NAME)
    channel.edit(more)
    assert len(server.taken) == len(server.calls) == 2 * sent
    for call in server.taken[sent:]:
        assert "train.py:5" in str(call.json)
        assert call.path.endswith(("/chat.update", "/messages/1", "/editMessageText"))


def test_message_about_the_end_replies_to_the_first_message(
    edge: Any, opened: Notice, closed: Notice
) -> None:
    for name in EDITABLE:
        server = edge.serve(CHATS[name].host, CHATS[name].protocol)
        channel = AppriseChannel(CHATS[name].url)
        channel.send(opened)
        sent = len(server.taken)
        channel.send(closed)
        assert len(server.taken) == len(server.calls) == 2 * sent
        ends = [call.json for call in server.taken[sent:]]
        if name == "slack-bot":
            assert {(end["thread_ts"], end["reply_broadcast"]) for end in ends} == {
                ("1503435956.000247", True)
            }
            assert [end["channel"] for end in ends] == ["C0000TRAI", "C0123ABCD"]
        if name == "telegram":
            assert [end["reply_parameters"]["message_id"] for end in ends] == [17, 17]
        assert not channel.has_message(NAME), "nothing is edited after the end"


@pytest.mark.parametrize("name", [name for name in CHATS if name not in EDITABLE])
def test_chats_without_edits_receive_the_end_as_a_new_message(
    name: str, edge: Any, opened: Notice, closed: Notice
) -> None:
    server = edge.serve(CHATS[name].host, CHATS[name].protocol)
    channel = AppriseChannel(CHATS[name].url)
    channel.send(opened)
    assert not channel.has_message(NAME)
    channel.send(closed)
    assert len(server.taken) == len(server.calls) == 2


def test_deleted_thread_does_not_prevent_the_message_about_the_end(
    edge: Any, opened: Notice, closed: Notice
) -> None:
    server = edge.serve(CHATS["slack-bot"].host, CHATS["slack-bot"].protocol)
    channel = AppriseChannel(CHATS["slack-bot"].url)
    channel.send(opened)
    server.force = [reply({"ok": False, "error": "thread_not_found"})]
    with pytest.raises(ChannelError):
        channel.send(closed)
    channel.send(closed)
    assert [call.json.get("thread_ts") for call in server.taken[2:]] == [None, None]


def test_grouped_message_is_not_edited(edge: Any, opened: Notice) -> None:
    edge.serve(CHATS["discord"].host, CHATS["discord"].protocol)
    channel = AppriseChannel(CHATS["discord"].url)
    channel.send(replace(opened, facts={**opened.facts, "count": 4}))
    assert not channel.has_message(NAME)
