"""Send notices to Microsoft Teams through a Power Automate workflow.

The documentation at learn.microsoft.com says:

* "Create incoming webhooks with Workflows for Microsoft Teams" and "Create and send messages" of incoming
  webhooks: A message contains a card of at most 28 KB in ``attachments``. Status 429 means that there were
  more than four requests in a second.
* "Trigger a workflow with a request": The response has status 202. An error is reported as ``error.code``.

The documentation at adaptivecards.io describes "RichTextBlock" and "TextRun". Teams shows text runs
literally, but interprets Markdown in text blocks. Apprise sends text blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stallwatch_alerts.channels.chats.base import Chat, fit, headline, json_bytes
from stallwatch_alerts.channels.http import Answer, Request
from stallwatch_alerts.messages.layout import Block, Code, Links
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

_LIMIT = 27_000
_STYLES = {"failure": "attention", "warning": "warning", "info": "accent", "success": "good"}
_CODE = lazy(r"[A-Za-z0-9_.-]{1,60}")


class Teams(Chat):
    """Sends notices to one workflow."""

    name = "teams"
    title = "Teams"

    def __init__(self, plugin: Any) -> None:
        path = "/powerautomate/automations/direct" if plugin.power_automate else ""
        if path and plugin.routing_id:
            path += f"/cu/{plugin.routing_id}"
        port = f":{plugin.port}" if plugin.port else ""
        self._url = (
            f"https://{plugin.host}{port}{path}/workflows/{plugin.workflow}/triggers/manual/paths/invoke"
        )
        self._params = {
            "api-version": plugin.api_version,
            "sp": "/triggers/manual/run",
            "sv": "1.0",
            "sig": plugin.signature,
        }

    def requests(self, notice: Notice) -> list[Request]:
        """Return a single request with an adaptive card."""
        body = fit(notice, _LIMIT, lambda blocks: _body(notice, blocks), json_bytes)
        return [Request(self._url, body, params=self._params)]

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the error code and message of Power Automate, or `None` if the workflow started.

        The response (status 202) does not show whether the workflow succeeds.
        """
        if answer.status in (200, 202):
            return None
        error = answer.json().get("error")
        code = str(error.get("code", "")) if isinstance(error, dict) else ""
        code = code if _CODE.fullmatch(code) else f"http-{answer.status}"
        return code, f"{answer.status}: {code}"


def _body(notice: Notice, blocks: Sequence[Block]) -> dict[str, Any]:
    head = _run(headline(notice), weight="Bolder", size="Medium")
    content: list[dict[str, Any]] = [
        {"type": "Container", "style": _STYLES[notice.level], "bleed": True, "items": [_line([head])]}
    ]
    actions: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Links):
            actions += [{"type": "Action.OpenUrl", "title": label, "url": url} for label, url in block.links]
        elif isinstance(block, Code):
            lines = [_line([_run(line or " ", fontType="Monospace", size="Small")]) for line in block.lines]
            content.append({"type": "Container", "style": "emphasis", "items": lines})
        else:
            content.append({"type": "Container", "items": [_prose(line) for line in block.lines]})
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": content,
        "actions": actions,
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "summary": headline(notice), "attachments": [attachment]}


def _prose(line: tuple[str, str]) -> dict[str, Any]:
    label, rest = line
    runs = [_run(label, weight="Bolder")] if label else []
    return _line([*runs, _run(rest)] if rest else runs or [_run(" ")])


def _line(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "spacing": "None", "inlines": runs}


def _run(text: str, **style: str) -> dict[str, Any]:
    return {"type": "TextRun", "text": text, **style}
