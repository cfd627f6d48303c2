"""Send one HTTP request to a chat. Error messages omit the URL, which is a secret."""

from __future__ import annotations

import contextlib
import email.utils
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import requests

from stallwatch_alerts.channels.errors import ChannelError, known_failure
from stallwatch_rules.text.foreign_json import read_json

_TOO_MANY = 429
# Maximum number of bytes to read: chats echo the message, and long error pages of proxies are useless.
_MOST_BYTES = 65_536
_LONGEST = 30.0  # maximum seconds to read a response: the timeout of ``requests`` restarts with every byte


@dataclass(frozen=True)
class Request:
    """A JSON request. Its ``repr`` shows no field, so that tracebacks with variables cannot leak secrets."""

    url: str = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)
    params: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: str = "POST"


@dataclass(frozen=True)
class Answer:
    """A chat's response to a request: status, headers, and body."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    text: str = ""

    @property
    def ok(self) -> bool:
        """True if the HTTP status means success. Some chats also report errors with status 200."""
        return 200 <= self.status < 300

    def code(self, error_number: object = None) -> str:
        """Return `error_number` if it is an integer, or else ``malformed`` or a code such as ``http-404``."""
        if isinstance(error_number, int):
            return str(error_number)
        return "malformed" if self.ok else f"http-{self.status}"

    def json(self) -> dict[str, Any]:
        """Return the JSON object in the body, or an empty dict if the body is not a JSON object."""
        try:
            found = read_json(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Line:
    """The connection options that an Apprise URL can contain."""

    verify: bool = True  #: false (``?verify=no``) to accept any certificate
    #: maximum number of seconds for connecting (``?cto=``) and for the response (``?rto=``)
    timeout: tuple[float, float] = (4.0, 4.0)
    redirects: bool = False


def post(request: Request, line: Line) -> Answer:
    """Send the request and return the response. Raise `ChannelError` if no response arrives."""
    try:
        return _post(request, line)
    except requests.RequestException as error:
        failure = _failure(error, line)
    raise failure  # raised outside the handler, so that the library's exception is not chained


def _post(request: Request, line: Line) -> Answer:
    headers = {"User-Agent": "Stallwatch", "Content-Type": "application/json; charset=utf-8"}
    data = json.dumps(request.body, ensure_ascii=False).encode()
    with requests.request(
        request.method,
        request.url,
        data=data,
        params=dict(request.params),
        headers={**headers, **request.headers},
        verify=line.verify,
        timeout=line.timeout,
        allow_redirects=line.redirects,
        stream=True,
    ) as response:
        end = time.monotonic() + _LONGEST
        content = bytearray()
        # Read byte by byte, so that a slow response cannot block the sender beyond the time limit.
        for piece in response.iter_content(1):
            content += piece
            if len(content) >= _MOST_BYTES or time.monotonic() > end:
                break
        return Answer(response.status_code, dict(response.headers), content.decode("utf-8", "replace"))


def _failure(error: Exception, line: Line) -> ChannelError:
    """Return a `ChannelError` that omits the URL, which the library's exception can contain."""
    if isinstance(error, requests.Timeout):
        return ChannelError(f"no response within {max(line.timeout):g} s", code="timeout")
    if (known := known_failure(str(error))) is not None:
        return known
    broke = isinstance(error, requests.ConnectionError)
    reason = (
        "the connection was interrupted" if broke else f"the message was not sent ({type(error).__name__})"
    )
    return ChannelError(reason, code="connection")


def retry_after(answer: Answer) -> float | None:
    """Return the longest wait in seconds that a server requests, or `None` if it does not request a wait.

    ``Retry-After`` contains seconds or a date (RFC 9110, section 10.2.3). The body of a response with status
    429 can also contain seconds: in ``parameters.retry_after`` (Telegram) or ``retry_after`` (Discord). The
    gateway of Feishu sends a custom header with status 429 or, in earlier interfaces, with status 400
    (open.feishu.cn, "Rate limits").
    """
    headers = {name.lower(): value for name, value in answer.headers.items()}
    date = headers.get("date", "")
    requested = [_of_header(headers.get("retry-after", "").strip(), date)]
    if answer.status in (400, _TOO_MANY):
        requested.append(_of_header(headers.get("x-ogw-ratelimit-reset", "").strip(), date))
    if answer.status == _TOO_MANY:
        body = answer.json()
        parameters = body.get("parameters")
        requested.append(_seconds((parameters if isinstance(parameters, dict) else body).get("retry_after")))
    return max((seconds for seconds in requested if seconds is not None), default=None)


def _of_header(value: str, date: str) -> float | None:
    """Return the wait in seconds that a header's value requests. `date` is the response's ``Date`` header."""
    with contextlib.suppress(ValueError):
        return _seconds(float(value))
    until, now = _moment(value), _moment(date)
    return None if until is None else max(0.0, until - (time.time() if now is None else now))


def _moment(date: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < float("inf") else None
