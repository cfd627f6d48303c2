"""Log text in each chat's markup mentions nobody, creates no link, and is shown unchanged."""

from __future__ import annotations

import html.parser
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from channels_chats import CHATS

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import Notice, incident_notice
from stallwatch_exporter.incident import Incident

HOSTILE = (
    "@everyone @here <!channel> <@U024BE7LH> <@&1> <at id=all></at> <@all> <#C1|x> [x](javascript:alert(1)) "
    "[free](http://evil.example/a) https://evil.example/b <script>x</script> <a href='http://evil.example'>y</a>"
    ' ![i](http://evil.example/i.png) ```` ``` `x` **b** __u__ ~~s~~ ||h|| <font color="info">z</font>'
    " &lt;!here&gt; # head \u202egnp see train.py"
)
EVERY = pytest.mark.parametrize("name", CHATS)


def sent(name: str, edge: Any, notice: Notice) -> dict[str, Any]:
    given = CHATS[name]
    server = edge.serve(given.host, given.protocol)
    AppriseChannel(given.url).send(notice)
    found: dict[str, Any] = server.taken[0].json
    return found


@EVERY
@pytest.mark.parametrize("language", ["en", "zh"])
def test_markup_in_an_incident_has_no_effect(
    name: str, language: str, edge: Any, stall: Callable[..., Incident]
) -> None:
    incident = stall(
        run=HOSTILE,
        host=HOSTILE,
        note=HOSTILE,
        evidence=[f"{HOSTILE} \ud800", f"{HOSTILE}\nRule: https://evil.example"],
        background=[HOSTILE],
    )
    body = json.dumps(sent(name, edge, incident_notice(incident, language, None)), ensure_ascii=False)
    body = body.replace("@13800001111", "")  # the mentions of the user's own URL
    for mark in (
        "@everyone",
        "@here",
        "@all",
        "<!",
        "<@",
        "<at",
        "<#",
        "](http",
        "](java",
        "://evil",
        "<script",
        "\\u202e",
    ):
        assert mark not in body, mark
    assert re.search(r"(?<!\$schema\": \")https?://(?!adaptivecards)", body) is None
    assert "evil" in body  # the text stays readable
    assert re.search("[\ud800-\udfff]", body) is None, "chats refuse what is not UTF-8"


RAW = Message(
    f"[{HOSTILE}] x",
    f"Run: {HOSTILE}\n\n    {HOSTILE}\n\nDashboard: https://watch.example.org/run?run=a(b)&c=d",
)


@pytest.fixture
def raw(notice: Notice) -> Notice:
    """Return the notice with unfiltered text, so that the chat's module alone has to escape it."""
    return Notice(RAW, "failure", notice.facts)


def test_slack_markup_is_not_interpreted(edge: Any, raw: Notice) -> None:
    body = sent("slack", edge, raw)
    assert not re.search(r"[<>]", body["text"])
    elements = [item for element in body["blocks"][1]["elements"] for item in element["elements"]]
    assert [element["url"] for element in elements if element["type"] == "link"] == [
        "https://watch.example.org/run?run=a(b)&c=d"
    ]
    assert sum(HOSTILE in element["text"] for element in elements) == 2  # the text is unchanged


class Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, Any]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_telegram_message_has_only_our_tags_and_no_links_to_files(edge: Any, raw: Notice) -> None:
    body = sent("telegram", edge, raw)
    tags = Tags()
    tags.feed(body["text"])
    assert {tag for tag, _ in tags.tags} <= {"b", "code", "pre", "a"}
    assert [attrs for tag, attrs in tags.tags if tag == "a"] == [
        {"href": "https://watch.example.org/run?run=a(b)&c=d"}
    ]
    assert HOSTILE in tags.text
    assert "<code>train.py</code>" in body["text"]
    assert body["link_preview_options"] == {"is_disabled": True}


def test_discord_and_dingtalk_markup_is_escaped(edge: Any, raw: Notice) -> None:
    discord = sent("discord", edge, raw)
    assert discord["allowed_mentions"] == {"parse": []}
    prose, code, links = re.fullmatch(
        r"(.*?)\n```\n(.*?)\n```\n\n(.*)", discord["embeds"][0]["description"], re.S
    ).groups()  # type: ignore[union-attr]
    assert re.search(r"(?<!\\)[`<~|_]|(?<=\])\(", prose) is None
    assert "```" not in code
    assert links == "[Dashboard](https://watch.example.org/run?run=a%28b%29&c=d)"
    text = sent("dingtalk", edge, raw)["markdown"]["text"]
    unescaped = re.findall(r"(?<!\\)\[[^\]]*\]\([^)]*", text)
    assert unescaped == ["[Dashboard](https://watch.example.org/run?run=a%28b%29&c=d"]
    assert not re.search(r"(?<!\\)[<|]", text)


def test_wecom_and_feishu_messages_have_only_our_tags(edge: Any, raw: Notice) -> None:
    content = sent("wecom", edge, raw)["markdown"]["content"]
    assert re.findall("<[^>]*>", content) == ['<font color="warning">', "</font>"]
    assert re.findall(r"\]\(([^)]*)", content) == ["https://watch.example.org/run?run=a%28b%29&c=d"]
    for element in sent("feishu", edge, raw)["card"]["elements"]:
        assert not re.search(r"[<>]|\]\(", element.get("content", ""))


def test_teams_markup_is_not_interpreted(edge: Any, raw: Notice) -> None:
    (attachment,) = sent("teams", edge, raw)["attachments"]
    card = json.dumps(attachment["content"], ensure_ascii=False)
    assert '"TextBlock"' not in card
    assert card.count(json.dumps(HOSTILE, ensure_ascii=False)[1:-1]) == 3
