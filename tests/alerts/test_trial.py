from __future__ import annotations

from typing import Any

from stallwatch_alerts.trial import test_message as send_test_message


def test_each_url_is_reported_separately(chat_server: Any, other_chat_server: Any) -> None:
    other_chat_server.answers = [403]
    urls = [chat_server.url, other_chat_server.url, "gibberish", "json://127.0.0.1:1/s3cr3t-path"]
    good, refused, gibberish, unreachable = send_test_message(urls, "zh")
    assert good.delivered and good.url.endswith("/****")
    assert not refused.delivered and "403" in refused.reason
    assert not gibberish.delivered and gibberish.url == "****"
    assert not unreachable.delivered and unreachable.reason
    assert "s3cr3t" not in unreachable.url + unreachable.reason
    (body,) = chat_server.bodies
    assert "测试" in body["title"] and body["status"] == "open" and body["rule"] == "test-message"
    assert {
        "run",
        "rule",
        "severity",
        "status",
        "title",
        "text",
        "kind",
        "id",
        "step",
        "episode",
    } <= body.keys()
