"""Questions to a user's Prometheus, Alertmanager and relay, over their HTTP APIs."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

_TIMEOUT = 10.0
_MOST_BYTES = 64 << 20


class NoAnswer(Exception):
    """A server did not answer as it should; the reason, without the password of its address."""


class Server:
    """One server by its base address, which may hold a user and a password."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._allowed = ""
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._allowed = f"Basic {base64.b64encode(user.encode()).decode()}"
        elif token:
            self._allowed = f"Bearer {token}"

    def get(self, path: str, **query: str) -> Any:
        """The JSON at `path`; `NoAnswer` where there is none."""
        address = f"{self.url}{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        try:
            request = urllib.request.Request(address, headers={"User-Agent": "stallwatch"})
            if self._allowed:  # for this server, and none that it redirects to
                request.add_unredirected_header("Authorization", self._allowed)
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                return json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            raise NoAnswer(f"{self.url} answered {error.code} {error.reason}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise NoAnswer(f"{self.url}: {reason}") from error


class Prometheus(Server):
    """What we ask a Prometheus, or whatever speaks its API."""

    def query(self, expression: str) -> list[Any]:
        """The series of an instant query."""
        return list(self.get("/api/v1/query", query=expression)["data"]["result"])

    def rules(self) -> list[Any]:
        """All alerting rules."""
        groups = self.get("/api/v1/rules", type="alert")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def alertmanagers(self) -> list[str]:
        """The addresses of the Alertmanagers that it tells."""
        active = self.get("/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
        return [one["url"].partition("/api/v")[0] for one in active]

    def targets(self) -> list[Any]:
        """What it scrapes."""
        return list(self.get("/api/v1/targets", state="active")["data"]["activeTargets"])


class Alertmanager(Server):
    """What we ask an Alertmanager (API version 2)."""

    def alerts(self, run: str) -> list[Any]:
        """The alerts of a run."""
        return list(self.get("/api/v2/alerts", filter=f'run="{run}"'))


class RelayServer(Server):
    """What we ask a relay."""

    def messages(self, run: str) -> list[Any]:
        """What became of a run's messages."""
        return list(self.get("/api/messages", run=run))
