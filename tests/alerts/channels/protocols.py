"""The chats' protocols by their documentation; ``channels/chats`` names the pages.

Each protocol judges a request independently of Stallwatch's code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html.parser
import json
import re
import time
from typing import Any

from channels_edge import Call, Reply, reply

# Made-up secrets of the right shape.
SLACK = ("T1JJ3T3L2", "A1BRTD4JD", "TIiajkdnlazkcOXrIdevi7FQ")
DISCORD = ("4174216298", "JHMHI8qBe7bk2ZwO5U711o3dV-js")
TELEGRAM = "123456789:AbCdEfGh-IjKlMnOpQrStUvWxYz012345678"
FEISHU, FEISHU_SECRET = "0c6b3f39-1a2b-4c3d-9e8f-aa11bb22cc33", "q3Zb8mPfXw2LkVn5"
DINGTALK, DINGTALK_SECRET = "566cc69da782ec33b0a1", "SEC" + "000c65eb70bbd21d"
WECOM = "693a91f6-7bbc-4bc4-97a0-0ec2f1fa5aaa"
TEAMS = ("3f1ac0b7e2d94f1b8c1d", "iXkQ2mR7sUv-w8yZ0aBcDeFg_1h")


def slack(call: Call) -> Reply:
    """Answer as incoming webhooks do: errors are plain words."""
    if call.path != "/services/" + "/".join(SLACK):
        return Reply(403, "invalid_token") if call.path.startswith("/services/") else Reply(404, "no_service")
    try:
        fault = slack_fault(call.json)
    except ValueError:
        fault = "invalid_payload"
    return Reply(400, fault) if fault else Reply(200, "ok")


def slack_bot(call: Call) -> Reply:
    """Answer as chat.postMessage and chat.update do: errors come with status 200."""
    if call.headers["Authorization"] != "Bearer xoxb-1234567890-abcdefABCDEF":
        return reply({"ok": False, "error": "invalid_auth"})
    body, ids = call.json, {"#training": "C0000TRAI", "C0123ABCD": "C0123ABCD"}
    fault = slack_fault(body)
    if call.path == "/api/chat.update":  # chat.update requires a channel id and the exact time of a message
        if body.get("channel") not in ids.values():
            return reply({"ok": False, "error": "channel_not_found"})
        if body.get("ts") != "1503435956.000247":
            return reply({"ok": False, "error": "message_not_found"})
    else:
        if body.get("channel") not in (*ids, *ids.values()):
            return reply({"ok": False, "error": "channel_not_found"})
        if body.get("thread_ts") not in (None, "1503435956.000247"):
            return reply({"ok": False, "error": "thread_not_found"})
        if body.get("reply_broadcast") and not body.get("thread_ts"):
            return reply({"ok": False, "error": "invalid_arguments"})
    channel = ids.get(body["channel"], body["channel"])
    posted = {"ok": True, "channel": channel, "ts": "1503435956.000247"}
    return reply({"ok": False, "error": fault} if fault else posted)


def slack_fault(body: dict[str, Any]) -> str:
    if not body.get("text") and not body.get("blocks"):
        return "no_text"
    if re.search(r"<[!@#]", body.get("text", "")) or len(body.get("blocks", ())) > 50:
        return "invalid_payload"
    for block in body.get("blocks", ()):
        if block["type"] == "header":
            text = block["text"]
            if text["type"] != "plain_text" or not 1 <= len(text["text"]) <= 150:
                return "invalid_blocks"
        elif block["type"] == "rich_text":
            for element in block["elements"]:
                if element["type"] not in ("rich_text_section", "rich_text_preformatted"):
                    return "invalid_blocks"
                allowed = {"text"} if element["type"] == "rich_text_preformatted" else {"text", "link"}
                for item in element["elements"]:
                    if item["type"] not in allowed or not item["text"]:
                        return "invalid_blocks"
        else:
            return "invalid_blocks"
    return "msg_blocks_too_long" if len(json.dumps(body.get("blocks"), ensure_ascii=False)) > 13_000 else ""


def discord(call: Call) -> Reply:
    """Answer as "Execute Webhook" and "Edit Webhook Message" do."""
    own = "/api/webhooks/" + "/".join(DISCORD)
    if call.method == "PATCH" and call.path != f"{own}/messages/1":
        return reply({"message": "Unknown Message", "code": 10008}, 404)
    if call.method == "POST" and call.path != own:
        return reply({"message": "Unknown Webhook", "code": 10015}, 404)
    body = call.json
    total = 0
    for embed in body.get("embeds", ()):
        title, description = embed.get("title", ""), embed.get("description", "")
        if _utf16(title) > 256 or _utf16(description) > 4096 or not 0 <= embed["color"] <= 0xFFFFFF:
            return reply({"message": "Invalid Form Body", "code": 50035, "errors": {}}, 400)
        total += _utf16(title) + _utf16(description)
    if total > 6000 or (not total and not body.get("content")) or len(body.get("content", "")) > 2000:
        return reply({"message": "Cannot send an empty message", "code": 50006}, 400)
    answers = call.method == "PATCH" or call.query.get("wait") == "true"
    return reply({"id": "1", "type": 0}) if answers else Reply(204)


def telegram(call: Call) -> Reply:
    """Answer as sendMessage and editMessageText with HTML do."""
    edits = call.path == f"/bot{TELEGRAM}/editMessageText"
    if call.path != f"/bot{TELEGRAM}/sendMessage" and not edits:
        return _telegram(401, "Unauthorized")
    body = call.json
    if body.get("chat_id") not in (-1001234, 42):
        return _telegram(400, "Bad Request: chat not found")
    parser = _TelegramHtml()
    try:
        parser.feed(body["text"])
        parser.close()
        parser.end()
    except ValueError as error:
        return _telegram(400, f"Bad Request: can't parse entities: {error}")
    if not 1 <= _utf16(parser.text.strip()) <= 4096:
        return _telegram(400, "Bad Request: message is too long")
    if edits and body.get("message_id") != 17:
        return _telegram(400, "Bad Request: message to edit not found")
    answered = body.get("reply_parameters", {})
    if answered.get("message_id", 17) != 17 and not answered.get("allow_sending_without_reply"):
        return _telegram(400, "Bad Request: message to be replied not found")
    return reply({"ok": True, "result": {"message_id": 17, "chat": {"id": body["chat_id"]}, "date": 1}})


def _telegram(code: int, description: str) -> Reply:
    return reply({"ok": False, "error_code": code, "description": description}, code)


class _TelegramHtml(html.parser.HTMLParser):
    """Checker of Telegram's HTML: listed tags, closed in order; any other < or & must be escaped."""

    _TAGS = frozenset({"b", "i", "u", "s", "a", "code", "pre", "blockquote"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.text, self._open = "", []  # type: tuple[str, list[str]]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self._TAGS:
            raise ValueError(f'Unsupported start tag "{tag}"')
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            raise ValueError(f'Unmatched end tag "{tag}"')

    def handle_data(self, data: str) -> None:
        if "<" in data:
            raise ValueError("a bare <")
        self.text += data

    def handle_entityref(self, name: str) -> None:
        if name not in ("lt", "gt", "amp", "quot"):
            raise ValueError(f"Unsupported entity {name}")
        self.text += "&"

    def handle_charref(self, name: str) -> None:
        self.text += "#"

    def end(self) -> None:
        if self._open:
            raise ValueError(f'Can\'t find end tag "{self._open[-1]}"')


def feishu(call: Call) -> Reply:
    """Answer as a custom bot with signature verification does."""
    if call.path != f"/open-apis/bot/v2/hook/{FEISHU}":
        return reply(
            {"code": 19001, "msg": "param invalid: incoming webhook access token invalid", "data": {}}
        )
    body = call.json
    signed = base64.b64encode(
        hmac.new(f"{body.get('timestamp')}\n{FEISHU_SECRET}".encode(), b"", hashlib.sha256).digest()
    ).decode()
    late = abs(time.time() - int(body.get("timestamp", 0))) > 3600
    if late or body.get("sign") != signed:
        said = "sign match fail or timestamp is not within one hour from current time"
        return reply({"code": 19021, "msg": said, "data": {}})
    if len(call.body) > 20 * 1024 or body.get("msg_type") not in ("text", "post", "interactive"):
        return reply({"code": 9499, "msg": "Bad Request", "data": {}})
    card = body["card"]
    tags = {"markdown", "div", "action", "note", "hr"}
    if not card["elements"] or any(element["tag"] not in tags for element in card["elements"]):
        return reply({"code": 9499, "msg": "Bad Request", "data": {}})
    if "Stallwatch" not in json.dumps(body):
        return reply({"code": 19024, "msg": "Key Words Not Found", "data": {}})
    return reply({"code": 0, "msg": "success", "data": {}, "StatusCode": 0, "StatusMessage": "success"})


def dingtalk(call: Call) -> Reply:
    """Answer as a custom robot with a signature and the keyword Stallwatch does."""
    if call.path != "/robot/send" or call.query.get("access_token") != DINGTALK:
        return reply({"errcode": 300005, "errmsg": "token is not exist"})
    stamp = call.query.get("timestamp", "0")
    secret = DINGTALK_SECRET.encode()
    digest = hmac.new(secret, stamp.encode() + b"\n" + secret, hashlib.sha256).digest()
    if abs(time.time() * 1000 - int(stamp)) > 3_600_000:
        return reply({"errcode": 310000, "errmsg": "description:timestamp is invalid"})
    if call.query.get("sign") != base64.b64encode(digest).decode():
        return reply({"errcode": 310000, "errmsg": "sign not match"})
    if len(call.body) > 20_000:
        return reply({"errcode": 460101, "errmsg": "message too long, exceed 20000 bytes"})
    body = call.json
    if body["msgtype"] != "markdown" or not body["markdown"]["title"] or not body["markdown"]["text"]:
        return reply({"errcode": 40035, "errmsg": "param error"})
    if "Stallwatch" not in body["markdown"]["text"]:
        return reply({"errcode": 310000, "errmsg": "keywords not in content"})
    return reply({"errcode": 0, "errmsg": "ok"})


def wecom(call: Call) -> Reply:
    """Answer as a group robot does."""
    if call.path != "/cgi-bin/webhook/send" or call.query.get("key") != WECOM:
        return reply({"errcode": 93000, "errmsg": "invalid webhook url, hint: [1732], from ip: 1.2.3.4"})
    body = call.json
    content = body.get("markdown", {}).get("content", "")
    if body["msgtype"] != "markdown" or not content or len(content.encode()) > 4096:
        return reply(
            {"errcode": 40058, "errmsg": "markdown.content exceed max length 4096. invalid Request Parameter"}
        )
    return reply({"errcode": 0, "errmsg": "ok"})


def teams(call: Call) -> Reply:
    """Answer as a workflow does that a request starts, and that posts the card of the request."""
    if call.query.get("sig") != TEAMS[1]:
        return reply({"error": {"code": "DirectApiAuthorizationRequired", "message": "…"}}, 401)
    if call.path != f"/workflows/{TEAMS[0]}/triggers/manual/paths/invoke":
        return reply({"error": {"code": "WorkflowTriggerNotFound", "message": "…"}}, 404)
    # Without UTF-8 in the request's headers, Teams is said to count the text in UTF-16.
    size = len(call.body) if "charset=utf-8" in call.headers["Content-Type"].lower() else 2 * len(call.body)
    if size > 28 * 1024:
        return Reply(413, "")
    (attachment,) = call.json["attachments"]
    card = attachment["content"]
    sound = (
        call.json["type"] == "message"
        and attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
        and card["type"] == "AdaptiveCard"
        and card["version"] <= "1.5"
        and all(_is_sound(item) for item in card["body"])
        and all(action["type"] == "Action.OpenUrl" for action in card["actions"])
    )
    return Reply(202) if sound else reply({"error": {"code": "TriggerInputSchemaMismatch"}}, 400)


def _is_sound(item: dict[str, Any]) -> bool:
    if item["type"] == "Container":
        return bool(item["items"]) and all(_is_sound(entry) for entry in item["items"])
    runs = item["inlines"]
    return (
        item["type"] == "RichTextBlock"
        and bool(runs)
        and all(r["type"] == "TextRun" and r["text"] for r in runs)
    )


def _utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
