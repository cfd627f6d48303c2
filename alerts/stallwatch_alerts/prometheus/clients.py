"""Clients for the HTTP APIs of a user's Prometheus, Alertmanager, and relay."""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.error
import urllib.request
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from stallwatch_rules.text.foreign_json import read_json
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_alerts.people import Silence

_TIMEOUT = 10.0
_MOST_BYTES = 64 << 20
_WILD = lazy(r"(\*|\?|\[[^\]]+\])")


class NoAnswer(Exception):
    """Raised if a server returned no usable response.

    The message omits the password in the server's address.
    """


class Server:
    """A client for a server at a base address that can contain a username and a password."""

    def __init__(self, url: str, authorization: str = "") -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._allowed = authorization
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._allowed = f"Basic {base64.b64encode(user.encode()).decode()}"

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON at `path`. Raise `NoAnswer` if the server sends no JSON."""
        return self._json(f"{path}?{urlencode(query, quote_via=quote)}" if query else path, None)

    def post(self, path: str, body: object) -> Any:
        """Send JSON to `path` and return the JSON response. Raise `NoAnswer` if the server sends no JSON."""
        return self._json(path, json.dumps(body).encode())

    def _json(self, path: str, data: bytes | None) -> Any:
        try:
            request = urllib.request.Request(f"{self.url}{path}", data, {"User-Agent": "stallwatch"})
            if data is not None:
                request.add_header("Content-Type", "application/json")
            # If the server redirects the request, the target of the redirect must not receive the
            # credentials.
            if self._allowed:
                request.add_unredirected_header("Authorization", self._allowed)
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                return read_json(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            raise NoAnswer(f"{self.url} answered {error.code} {error.reason}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise NoAnswer(f"{self.url}: {reason}") from error


class Prometheus(Server):
    """A client for Prometheus, or for any server with the same API."""

    def query(self, expression: str) -> list[Any]:
        """Run an instant query and return the series in its result."""
        return list(self.get("/api/v1/query", query=expression)["data"]["result"])

    def rules(self) -> list[Any]:
        """Return all alerting rules that the server has loaded."""
        groups = self.get("/api/v1/rules", type="alert")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def alertmanagers(self) -> list[str]:
        """Return the addresses of the Alertmanagers to which Prometheus sends alerts."""
        active = self.get("/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
        return [alertmanager["url"].partition("/api/v")[0] for alertmanager in active]

    def targets(self) -> list[Any]:
        """Return the active scrape targets of Prometheus."""
        return list(self.get("/api/v1/targets", state="active")["data"]["activeTargets"])


class Alertmanager(Server):
    """A client for Alertmanager (API version 2, ``api/v2/openapi.yaml`` in its source)."""

    def alerts(self, run: str) -> list[Any]:
        """Return the alerts about a run."""
        return list(self.get("/api/v2/alerts", filter=f'run="{run}"'))

    def silence(self, silence: Silence) -> str:
        """In Alertmanager, create a silence that covers the same alerts as a Stallwatch silence.

        Return the ID of the new silence. A silence that matches everything covers all Stallwatch alerts.
        """
        body = {
            "matchers": _matchers(silence),
            "startsAt": _time(silence.starts_at),
            "endsAt": _time(silence.ends_at),
            "createdBy": silence.who or "stallwatch",
            "comment": silence.comment or "stallwatch alerts silence",
        }
        return str(self.post("/api/v2/silences", body)["silenceID"])


class Relay(Server):
    """A client for a Stallwatch relay."""

    def messages(self, run: str) -> list[Any]:
        """Return the state of each message about a run, such as whether it was delivered."""
        return list(self.get("/api/messages", run=run))


def _matchers(silence: Silence) -> list[dict[str, Any]]:
    found = [_matcher("alertname", "Stallwatch*")]
    for name in ("run", "rule", "severity"):
        if wanted := getattr(silence, name):
            found.append(_matcher(name, wanted))
    return found


def _matcher(name: str, pattern: str) -> dict[str, Any]:
    # Alertmanager matches entire values with regular expressions in RE2 syntax. ``fnmatch.translate`` writes
    # Python syntax.
    known = {"*": ".*", "?": "."}
    parts = _WILD.split(pattern)
    expression = "".join(
        (known.get(part) or part.replace("[!", "[^", 1)) if at % 2 else re.escape(part)
        for at, part in enumerate(parts)
    )
    is_wild = len(parts) > 1
    return {"name": name, "value": expression if is_wild else pattern, "isRegex": is_wild, "isEqual": True}


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat()
