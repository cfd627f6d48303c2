"""The examples in docs/chats.md equal the sent requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from channels_chats import CHATS

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.messages.layout import html_page
from stallwatch_alerts.notice import Notice, incident_notice, linked
from stallwatch_alerts.settings import AlertSettings
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import load_catalogue

# (chat, language, the part of its JSON that is shown, language of the example).
SHOWN: list[tuple[str, str, Callable[[Any], Any], str]] = [
    ("Slack", "en", lambda body: body["blocks"][1]["elements"][1:4], "json"),
    ("Discord", "en", lambda body: body["embeds"][0]["description"], "markdown"),
    ("Telegram", "en", lambda body: body["text"], "html"),
    ("Teams", "en", lambda body: body["attachments"][0]["content"]["body"][:2], "json"),
    ("Feishu", "zh", lambda body: body["card"], "json"),
    ("DingTalk", "zh", lambda body: body["markdown"]["text"], "markdown"),
    ("WeCom", "zh", lambda body: body["markdown"]["content"], "markdown"),
]


@pytest.fixture
def example(stall: Callable[..., Incident], cache_folder: Path) -> Callable[[str], Notice]:
    page = load_catalogue(cache=cache_folder).pages["cuda-oom"]

    def notice(language: Any) -> Notice:
        incident = stall(
            kind="finding",
            rule="cuda-oom",
            rank=3,
            evidence=["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
        )
        found = incident_notice(incident, language, page)
        settings = AlertSettings(language=language, dashboard_url="https://watch.example.org")
        return linked(found, page, incident.run, settings)

    return notice


@pytest.mark.parametrize(("chat", "language", "part", "form"), SHOWN, ids=[row[0] for row in SHOWN])
def test_documented_example_of_a_chat_equals_the_request(
    chat: str, language: str, part: Any, form: str, edge: Any, example: Any, root: Path
) -> None:
    given = CHATS[chat.lower()]
    server = edge.serve(given.host, given.protocol)
    AppriseChannel(given.url).send(example(language))
    shown = part(server.taken[0].json)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, indent=1)
    expected = f"### {chat}\n\n`````{form}\n{text.strip()}\n`````\n"
    assert expected in (root / "docs/chats.md").read_text(encoding="utf-8"), expected


def test_documented_example_of_an_email_equals_the_email(example: Any, root: Path) -> None:
    page = html_page(example("en").message.text).replace("</p><", "</p>\n<").replace("</pre>", "</pre>\n")
    expected = f"### Email\n\n`````html\n{page}\n`````\n"
    assert expected in (root / "docs/chats.md").read_text(encoding="utf-8"), expected
