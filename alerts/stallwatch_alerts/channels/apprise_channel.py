"""One chat behind an Apprise URL. A channel is one URL, so that each fails, waits and retries by itself."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast

import apprise
from apprise.plugins.custom_json import NotifyJSON
from apprise.plugins.email import NotifyEmail
from apprise.plugins.ntfy import NotifyNtfy, NtfyPriority

from stallwatch_alerts.channels.addresses import apprise_url, no_channel
from stallwatch_alerts.channels.chats import chat_of
from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.channels.faces import headline
from stallwatch_alerts.channels.overhearing import Heard, listen_to, overheard, silence_libraries
from stallwatch_alerts.channels.posting import Line, post, retry_after
from stallwatch_alerts.channels.smtp import code_of
from stallwatch_alerts.channels.unreached import reason_of, wants_tls
from stallwatch_alerts.masking import hide_secrets, learn_schemes, mask_url
from stallwatch_alerts.messages.layout import clipped
from stallwatch_alerts.messages.page import html_page
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.redact import redact

if TYPE_CHECKING:
    from stallwatch_alerts.channels.chats import EditableChat, Place
    from stallwatch_alerts.channels.posting import Request

__all__ = ["AppriseChannel", "ChannelError"]

_LEVELS = {
    "failure": apprise.NotifyType.FAILURE,
    "warning": apprise.NotifyType.WARNING,
    "info": apprise.NotifyType.INFO,
    "success": apprise.NotifyType.SUCCESS,
}
# docs.ntfy.sh, "Publishing", "Message priority": 4 and 5 make themselves heard.
_PRIORITIES = {
    "failure": NtfyPriority.MAX,
    "warning": NtfyPriority.HIGH,
    "info": NtfyPriority.LOW,
    "success": NtfyPriority.NORMAL,
}
_NTFY_BYTES = 4096  # docs.ntfy.sh, "Limitations": a longer message becomes an attachment
_NTFY_REST = 300  # topic, tags and the names of all fields
_LONGEST_REASON = 500
_MOST_PLACES = 500  # of open incidents


class AppriseChannel:
    """Delivers notices to one Apprise URL. Used by one thread at a time."""

    def __init__(self, url: str) -> None:
        """`ChannelError` where Apprise does not understand the URL."""
        silence_libraries()
        learn_schemes()
        self.name = mask_url(url)
        self._url = url
        # No image mask: the pictures would be loaded from somewhere else.
        asset = apprise.AppriseAsset(
            app_id="Stallwatch", app_desc="Stallwatch", image_url_mask="", async_mode=False
        )
        with overheard() as heard:
            plugin = apprise.Apprise.instantiate(apprise_url(url), asset=asset)
        if plugin is None:
            reason, code = no_channel(url, heard.said)
            raise ChannelError(self._hidden(reason), code=code)
        self._plugin: Any = plugin
        self._chat = chat_of(plugin, url)
        self._line = Line(plugin.verify_certificate, plugin.request_timeout, bool(plugin.redirects))
        # The notice in hand, and where it is by now, target by target.
        self._taken: tuple[Notice | None, list[Place | None]] = (None, [])
        self._editable = cast("EditableChat | None", self._chat if hasattr(self._chat, "edits") else None)
        self._places: OrderedDict[str, list[Place]] = OrderedDict()  # of open incidents, by id
        self._own_fields = dict(plugin.payload_extras) if isinstance(plugin, NotifyJSON) else {}
        self._own_priority = isinstance(plugin, NotifyNtfy) and plugin.priority != NtfyPriority.NORMAL
        if isinstance(plugin, NotifyNtfy):
            plugin.request_rate_per_sec = 0  # Apprise would sleep for 5.5 s; ``delivery.pacing`` knows better
        self._apprise = apprise.Apprise(asset=asset)
        self._apprise.add(plugin)
        listen_to(plugin)

    def __repr__(self) -> str:
        return f"AppriseChannel({self.name})"

    def send(self, notice: Notice) -> None:
        """Deliver, or raise `ChannelError` with the reason."""
        failure: ChannelError | None = None
        try:
            if self._chat is not None:
                self._post(notice)
            else:
                self._notify(notice)
        except ChannelError as error:
            failure = error
        except Exception as error:  # of a library: what it says, and what hangs on it, may hold the URL
            failure = ChannelError(f"not sent ({type(error).__name__})", code="internal")
        if failure is not None:
            raise ChannelError(
                self._hidden(str(failure)),
                chat=failure.chat,
                code=failure.code,
                retry_after=failure.retry_after,
            )

    def has_message(self, incident: str) -> bool:
        """Whether we sent the chat a message of this open incident that can be edited."""
        return incident in self._places

    def edit(self, notice: Notice) -> None:
        """Bring that message up to date. `ChannelError` where the chat refuses it."""
        places = self._places.get(str(notice.facts.get("id")), [])
        if self._editable is None:
            return
        failure: ChannelError | None = None
        for request in self._editable.edits(notice, places):
            try:
                failure = self._editable.fault(post(request, self._line)) or failure
            except ChannelError as error:
                failure = error
        if failure is not None:
            raise ChannelError(self._hidden(str(failure)), code=failure.code, retry_after=failure.retry_after)

    def _post(self, notice: Notice) -> None:
        """To all targets; a second try goes on where the first one stopped."""
        assert self._chat is not None
        before, taken = self._taken
        if before != notice:
            taken = []
        for request in self._requests(notice)[len(taken) :]:
            answer = post(request, self._line)
            failure = self._chat.fault(answer)
            if failure is not None:
                if failure.retry_after is None:  # such as a thread that is gone: the next try needs none
                    self._places.pop(str(notice.facts.get("id")), None)
                raise failure
            taken = [*taken, self._editable.place(answer) if self._editable is not None else None]
            self._taken = (notice, taken)
        self._taken = (None, [])
        self._keep(notice, [place for place in taken if place is not None], len(taken))

    def _requests(self, notice: Notice) -> list[Request]:
        assert self._chat is not None
        places = self._places.get(str(notice.facts.get("id"))) if "count" not in notice.facts else None
        if places and self._editable is not None:
            return self._editable.replies(notice, places)
        return self._chat.requests(notice)

    def _keep(self, notice: Notice, places: list[Place], targets: int) -> None:
        """Remember where the message of an open incident is; a later one is an answer to it."""
        name = str(notice.facts.get("id"))
        if notice.facts.get("status") == "resolved":
            self._places.pop(name, None)
        elif "count" not in notice.facts and places and len(places) == targets:
            self._places.setdefault(name, places)
        while len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)

    def _notify(self, notice: Notice) -> None:
        title, body, form = self._words(notice)
        with overheard() as heard:
            delivered = self._apprise.notify(
                body=body,
                title=title,
                notify_type=_LEVELS[notice.level],
                body_format=form,
                interpret_escapes=False,
            )
        if not delivered:
            raise _failure(heard, "smtp" if isinstance(self._plugin, NotifyEmail) else "")

    def _words(self, notice: Notice) -> tuple[str, str, apprise.NotifyFormat]:
        title, text = headline(notice), notice.message.text
        if isinstance(self._plugin, NotifyJSON):
            # The `:key=value` part of a json:// URL, filled in here; what the user wrote there wins.
            self._plugin.payload_extras = {**notice.facts, "text": text, **self._own_fields}
            return notice.message.title, text, apprise.NotifyFormat.TEXT
        if isinstance(self._plugin, NotifyNtfy):
            if not self._own_priority:
                self._plugin.priority = _PRIORITIES[notice.level]
            # Apprise attaches what is longer than this once it is JSON with escapes for all but ASCII.
            room = self._plugin.ntfy_json_upstream_size_limit - len(json.dumps(title)) - _NTFY_REST
            return title, _for_ntfy(text, room), apprise.NotifyFormat.TEXT
        if isinstance(self._plugin, NotifyEmail):
            return title, html_page(notice.message.text), apprise.NotifyFormat.HTML
        return title, text, apprise.NotifyFormat.TEXT

    def _hidden(self, reason: str) -> str:
        return hide_secrets(redact(reason), self._url)[:_LONGEST_REASON]


def _failure(heard: Heard, chat: str) -> ChannelError:
    reason = "; ".join(dict.fromkeys(heard.said)) or "Apprise could not deliver the message"
    refused = next((answer for answer in reversed(heard.answers) if not answer.ok), None)
    if refused is None:
        code = code_of(reason) if chat == "smtp" else "connection"
        core = None if code.startswith("smtp-") else reason_of(reason)
        if core is not None:
            return ChannelError(core[0], code=core[1])
        return ChannelError(reason, chat=chat, code=code)
    if wants_tls(refused.text):
        return ChannelError("the port takes HTTPS only", code="wants-tls")
    return ChannelError(reason, chat=chat, code=f"http-{refused.status}", retry_after=retry_after(refused))


def _for_ntfy(text: str, room: int) -> str:
    while (size := max(len(text.encode()) - _NTFY_BYTES, len(json.dumps(text)) - room)) > 0:
        text = clipped(text, len(text) - max(1, size // 6))
    return text
