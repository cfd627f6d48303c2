"""Send notices to the chat that an Apprise URL identifies."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import apprise
from apprise.plugins.custom_json import NotifyJSON
from apprise.plugins.email import NotifyEmail
from apprise.plugins.ntfy import NotifyNtfy, NtfyPriority

from stallwatch_alerts.channels.addresses import apprise_schemes, apprise_url, no_channel
from stallwatch_alerts.channels.chats import chat_of
from stallwatch_alerts.channels.chats.base import Chat, Place, headline
from stallwatch_alerts.channels.errors import WANTS_TLS, ChannelError, known_failure, smtp_code
from stallwatch_alerts.channels.http import Line, post, retry_after
from stallwatch_alerts.channels.log_capture import (
    DeliveryCapture,
    capture,
    capture_answers,
    silence_libraries,
)
from stallwatch_alerts.masking import hide_secrets, mask_url
from stallwatch_alerts.messages.layout import html_page
from stallwatch_alerts.neutral import clipped
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.redact import add_schemes, redact

# Priorities 4 and 5 make the phone ring (docs.ntfy.sh, "Publishing", "Message priority").
_PRIORITIES = {
    "failure": NtfyPriority.MAX,
    "warning": NtfyPriority.HIGH,
    "info": NtfyPriority.LOW,
    "success": NtfyPriority.NORMAL,
}
_NTFY_BYTES = 4096  # docs.ntfy.sh, "Limitations": a longer message becomes an attachment
_NTFY_REST = 300  # bytes reserved for the topic, the tags, and the field names of the JSON message
_LONGEST_REASON = 500
_MOST_PLACES = 500  # maximum number of open incidents whose messages a channel remembers


class AppriseChannel:
    """Sends notices to one Apprise URL. Use an instance in only one thread at a time."""

    def __init__(self, url: str) -> None:
        """Raise `ChannelError` if Apprise does not understand the URL."""
        silence_libraries()
        add_schemes(apprise_schemes())
        self.name = mask_url(url)
        self._url = url
        # The image mask is empty. Otherwise, chat clients would load images from another server.
        asset = apprise.AppriseAsset(
            app_id="Stallwatch", app_desc="Stallwatch", image_url_mask="", async_mode=False
        )
        with capture() as captured:
            plugin = apprise.Apprise.instantiate(apprise_url(url), asset=asset)
        if plugin is None:
            raise self._masked(no_channel(url, captured.lines))
        self._plugin: Any = plugin
        self._chat = chat_of(plugin, url)
        self._line = Line(plugin.verify_certificate, plugin.request_timeout, bool(plugin.redirects))
        # The notice being sent, and the locations of its messages in the chats that have already accepted the
        # notice.
        self._taken: tuple[Notice | None, list[Place | None]] = (None, [])
        # Locations of the messages about open incidents, by incident ID.
        self._places: OrderedDict[str, list[Place]] = OrderedDict()
        self._own_fields = dict(plugin.payload_extras) if isinstance(plugin, NotifyJSON) else {}
        self._own_priority = isinstance(plugin, NotifyNtfy) and plugin.priority != NtfyPriority.NORMAL
        if isinstance(plugin, NotifyNtfy):
            # By default, Apprise sleeps for 5.5 s between requests. ``delivery.pacing`` limits the rate
            # instead.
            plugin.request_rate_per_sec = 0
        self._apprise = apprise.Apprise(asset=asset)
        self._apprise.add(plugin)
        capture_answers(plugin)

    def __repr__(self) -> str:
        return f"AppriseChannel({self.name})"

    def send(self, notice: Notice) -> None:
        """Send the notice. Raise `ChannelError` with the reason if the chat does not accept it."""
        failure: ChannelError | None = None
        try:
            if self._chat is not None:
                self._post(self._chat, notice)
            else:
                self._notify(notice)
        except ChannelError as error:
            failure = error
        except Exception as error:
            # A library's error can contain the URL, either in its message or in its exception chain.
            failure = ChannelError(f"the message was not sent ({type(error).__name__})", code="internal")
        if failure is not None:
            raise self._masked(failure)

    def has_message(self, incident: str) -> bool:
        """Return whether this channel has sent a message about the open incident and can edit the message."""
        return incident in self._places

    def edit(self, notice: Notice) -> None:
        """Edit the messages about the notice's incident. Raise `ChannelError` if the chat refuses an edit."""
        failure: ChannelError | None = None
        if self._chat is not None:
            for request in self._chat.edits(notice, self._places.get(_incident_of(notice), [])):
                try:
                    failure = self._chat.failure(post(request, self._line)) or failure
                except ChannelError as error:
                    failure = error
        if failure is not None:
            raise self._masked(failure)

    def _masked(self, failure: ChannelError) -> ChannelError:
        """Return a copy of the error that contains no secrets.

        Raise the copy outside exception handlers, so that Python does not chain the original error to it.
        """
        return ChannelError(
            hide_secrets(redact(str(failure)), self._url)[:_LONGEST_REASON],
            chat=failure.chat,
            code=failure.code,
            retry_after=failure.retry_after,
        )

    def _post(self, chat: Chat, notice: Notice) -> None:
        """Send the notice to each target of the URL that has not accepted the notice yet."""
        incident, grouped = _incident_of(notice), "count" in notice.facts
        before, taken = self._taken
        if before != notice:
            taken = []
        places = None if grouped else self._places.get(incident)
        requests = chat.replies(notice, places) if places else chat.requests(notice)
        for request in requests[len(taken) :]:
            answer = post(request, self._line)
            failure = chat.failure(answer)
            if failure is not None:
                # A refusal without a wait can mean that the thread was deleted. Therefore, the next attempt
                # starts a new thread.
                if failure.retry_after is None:
                    self._places.pop(incident, None)
                raise failure
            taken = [*taken, chat.place(answer)]
            self._taken = (notice, taken)
        self._taken = (None, [])
        if notice.facts.get("status") == "resolved":
            self._places.pop(incident, None)
        elif taken and not grouped and None not in taken:
            # A later message about the open incident becomes a reply to this message.
            self._places.setdefault(incident, [place for place in taken if place is not None])
        while len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)

    def _notify(self, notice: Notice) -> None:
        title, body, form = self._words(notice)
        with capture() as captured:
            delivered = self._apprise.notify(
                body=body,
                title=title,
                notify_type=apprise.NotifyType(notice.level),
                body_format=form,
                interpret_escapes=False,
            )
        if not delivered:
            raise _failure(captured, "smtp" if isinstance(self._plugin, NotifyEmail) else "")

    def _words(self, notice: Notice) -> tuple[str, str, apprise.NotifyFormat]:
        title, text = headline(notice), notice.message.text
        if isinstance(self._plugin, NotifyJSON):
            # The facts are sent in the same way as the `:key=value` fields of a json:// URL. Fields in the
            # user's URL take precedence over the facts.
            self._plugin.payload_extras = {**notice.facts, "text": text, **self._own_fields}
            return notice.message.title, text, apprise.NotifyFormat.TEXT
        if isinstance(self._plugin, NotifyNtfy):
            if not self._own_priority:
                self._plugin.priority = _PRIORITIES[notice.level]
            # Apprise sends a longer text as an attachment. It measures the text as JSON, in which non-ASCII
            # characters are escaped.
            room = self._plugin.ntfy_json_upstream_size_limit - len(json.dumps(title)) - _NTFY_REST
            return title, _for_ntfy(text, room), apprise.NotifyFormat.TEXT
        if isinstance(self._plugin, NotifyEmail):
            return title, html_page(notice.message.text), apprise.NotifyFormat.HTML
        return title, text, apprise.NotifyFormat.TEXT


def _incident_of(notice: Notice) -> str:
    return str(notice.facts.get("id"))


def _failure(captured: DeliveryCapture, chat: str) -> ChannelError:
    reason = "; ".join(dict.fromkeys(captured.lines)) or "Apprise could not deliver the message"
    refused = next((answer for answer in reversed(captured.answers) if not answer.ok), None)
    if refused is None:
        code = smtp_code(reason) if chat == "smtp" else "connection"
        known = None if code.startswith("smtp-") else known_failure(reason)
        return known or ChannelError(reason, chat=chat, code=code)
    if WANTS_TLS.search(refused.text):
        return ChannelError("the port accepts only HTTPS", code="wants-tls")
    return ChannelError(reason, chat=chat, code=f"http-{refused.status}", retry_after=retry_after(refused))


def _for_ntfy(text: str, room: int) -> str:
    while (size := max(len(text.encode()) - _NTFY_BYTES, len(json.dumps(text)) - room)) > 0:
        text = clipped(text, len(text) - max(1, size // 6))
    return text
