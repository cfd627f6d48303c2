"""Apprise sends the messages by e-mail to a real SMTP server, to ntfy, and to custom webhooks."""

from __future__ import annotations

import email
import email.policy
import socket
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from channels_edge import Call, Reply, reply

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.channels.errors import ChannelError, remedy
from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import Notice


class Mailbox:
    """SMTP handler that accepts mail for one address only."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.answer = "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address != "team@example.org":
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.answer.startswith("250"):
            found = email.message_from_bytes(bytes(envelope.content or b""), policy=email.policy.default)
            assert isinstance(found, EmailMessage)
            self.mails.append(found)
        return self.answer


def _accepts(server: SMTP, session: Session, envelope: Envelope, how: str, data: Any) -> AuthResult:
    assert isinstance(data, LoginPassword)
    return AuthResult(success=data.password == b"pa55word-1", handled=False)


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    with (
        socket.socket() as probe
    ):  # the controller cannot choose a port itself, because it connects to the given one
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    controller = Controller(
        box,
        hostname="127.0.0.1",
        port=port,
        authenticator=_accepts,
        auth_required=True,
        auth_require_tls=False,
    )
    controller.start()
    yield box, port
    controller.stop()


def mail_url(port: int, password: str = "pa55word-1", to: str = "team@example.org") -> str:
    return f"mailto://bob:{password}@127.0.0.1:{port}?mode=insecure&from=bob@example.org&to={to}"


def test_email_contains_html_and_the_same_plain_text(mailbox: tuple[Mailbox, int], notice: Notice) -> None:
    box, port = mailbox
    AppriseChannel(mail_url(port)).send(notice)
    (mail,) = box.mails
    assert mail["Subject"] == "🔴 [myrun] stalled: no step for 42 s after step 160 of 900"
    assert mail["To"] == "team@example.org"
    html, text = (mail.get_body((kind,)) for kind in ("html", "plain"))
    assert html is not None and text is not None
    shown = html.get_content()
    assert "<strong>Likely cause:</strong>" in shown
    assert "in &lt;module&gt; &amp; __init__ **x**" in shown and "<pre" in shown
    assert '<a href="https://watch.example.org/run?run=my%20run&amp;x=1">Dashboard</a>' in shown
    assert "expected module 19" in text.get_content()


@pytest.mark.parametrize(
    ("password", "to", "answer", "code"),
    [
        ("wrong-one", "team@example.org", "250 OK", "smtp-535"),
        ("pa55word-1", "nobody@example.org", "250 OK", "smtp-550"),
        ("pa55word-1", "team@example.org", "451 try later", "smtp-451"),
        ("pa55word-1", "team@example.org", "552 too big", "smtp-552"),
    ],
)
def test_refusal_of_the_mail_server_has_its_code(
    mailbox: tuple[Mailbox, int], notice: Notice, password: str, to: str, answer: str, code: str
) -> None:
    box, port = mailbox
    box.answer = answer
    with pytest.raises(ChannelError) as caught:
        AppriseChannel(mail_url(port, password, to)).send(notice)
    assert (caught.value.chat, caught.value.code) == ("smtp", code)
    assert remedy("smtp", code, "en") and remedy("smtp", code, "zh")
    assert password not in str(caught.value)
    assert not box.mails


def test_unreachable_mail_server_is_reported_as_refused(notice: Notice) -> None:
    with pytest.raises(ChannelError) as caught:
        AppriseChannel(mail_url(1)).send(notice)
    assert caught.value.code == "refused"


def ntfy(call: Call) -> Reply:
    """Answer by docs.ntfy.sh: "Publish as JSON", "Limitations" and "Message priority"."""
    body = call.json
    if body.get("topic") != "s3cr3t-topic" or len(body["message"].encode()) > 4096:
        return reply({"code": 40009, "http": 400, "error": "invalid request: topic invalid"}, 400)
    return reply({"id": "x", "event": "message"})


def test_ntfy_gets_a_priority_and_no_attachment(edge: Any, notice: Notice) -> None:
    server = edge.serve("ntfy.sh", ntfy)
    channel = AppriseChannel("ntfy://s3cr3t-topic")
    channel.send(notice)
    channel.send(Notice(Message("[myrun] 停滞", "显存不足" * 2000), "warning", notice.facts))
    assert [call.headers["X-Priority"] for call in server.taken] == ["max", "high"]
    assert server.taken[0].json["title"].startswith("🔴 [myrun] stalled")
    assert server.taken[1].json["message"].endswith("…")


def test_priority_in_an_ntfy_url_is_kept(edge: Any, notice: Notice) -> None:
    server = edge.serve("ntfy.sh", ntfy)
    AppriseChannel("ntfy://s3cr3t-topic?priority=low").send(notice)
    assert server.taken[0].headers["X-Priority"] == "low"


def test_ntfy_rate_limit_sets_the_time_of_the_next_attempt(edge: Any, notice: Notice) -> None:
    said = {"code": 42901, "http": 429, "error": "limit reached: too many requests"}
    edge.serve("ntfy.sh", ntfy).force = [reply(said, 429, retry_after="9")]
    with pytest.raises(ChannelError) as caught:
        AppriseChannel("ntfy://s3cr3t-topic").send(notice)
    assert caught.value.retry_after == 9.0
    assert "42901" in str(caught.value)


def test_custom_webhook_receives_facts_without_decoration(edge: Any, notice: Notice) -> None:
    server = edge.serve("monitor.example.org", lambda _: Reply(204))
    AppriseChannel("jsons://monitor.example.org/hooks/x?:team=infra").send(notice)
    body = server.calls[0].json
    assert body["title"] == notice.message.title and body["text"] == notice.message.text
    assert (body["run"], body["severity"], body["team"]) == ("myrun", "critical", "infra")
