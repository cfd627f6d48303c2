"""For each refusal of a chat, ``stallwatch alerts test`` names the fix, in both languages."""

from __future__ import annotations

from typing import Any

import pytest
from channels_chats import CHATS
from channels_edge import Reply, reply

from stallwatch_alerts.channels.errors import remedy
from stallwatch_alerts.trial import test_message as send_test_message


@pytest.mark.parametrize("name", CHATS)
def test_wrong_secret_has_a_remedy(name: str, edge: Any) -> None:
    given = CHATS[name]
    edge.serve(given.host, given.protocol)
    for language, word in (("en", "URL"), ("zh", "URL")):
        (delivery,) = send_test_message([given.wrong], language)
        assert not delivery.delivered and word in delivery.remedy


def test_remedies_distinguish_signature_and_keyword_errors(edge: Any) -> None:
    feishu = edge.serve(CHATS["feishu"].host, CHATS["feishu"].protocol)
    feishu.force = [reply({"code": 19024, "msg": "Key Words Not Found"})]
    first, second = send_test_message([CHATS["feishu"].url, CHATS["feishu"].wrong], "en")
    assert "keyword" in first.remedy
    assert "19021" in second.reason and "secret" in second.remedy and "clock" in second.remedy
    server = edge.serve(CHATS["dingtalk"].host, CHATS["dingtalk"].protocol)
    said = ("keywords not in content", "sign not match", "ip 1.2.3.4 not in whitelist", "description: off")
    for message, word in zip(said, ("keyword", "secret", "address", "security setting"), strict=True):
        server.force = [reply({"errcode": 310000, "errmsg": message})]
        (delivery,) = send_test_message([CHATS["dingtalk"].url], "en")
        assert word in delivery.remedy, message


def test_unavailable_and_unreachable_chats_have_remedies(edge: Any) -> None:
    server = edge.serve(CHATS["slack"].host, CHATS["slack"].protocol)
    server.force = [Reply(503)]
    (down,) = send_test_message([CHATS["slack"].url], "en")
    assert "try again later" in down.remedy
    edge.down.add(CHATS["slack"].host)
    (unknown,) = send_test_message([CHATS["slack"].url], "zh")
    assert "HTTPS_PROXY" in unknown.remedy


def test_unknown_error_code_has_no_remedy() -> None:
    assert remedy("slack", "some_new_code", "en") == ""
