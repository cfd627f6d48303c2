"""Push boards, their data source, and incidents to a Grafana server. You can safely repeat a push.

The module uses these paths of the Grafana HTTP API through grafana-client: ``/folders``, ``/datasources``,
``/dashboards/db``, and ``/annotations``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from grafana_client.api import GrafanaApi
from grafana_client.client import GrafanaClientError, GrafanaException
from niquests.exceptions import InvalidSchema, InvalidURL, MissingSchema, RequestException

from stallwatch_dashboard.grafana.boards import RUN, TAG
from stallwatch_exporter.incident import Incident
from stallwatch_rules.locale import render

FOLDER, _TITLE = "stallwatch", "Stallwatch"
SOURCE = "stallwatch-prometheus"
TIMEOUT_SECONDS = 10.0

What = Literal["folder", "data source", "board", "annotation"]
How = Literal["created", "updated", "kept"]


class Done(NamedTuple):
    what: What
    name: str
    how: How


class PushError(Exception):
    """Raised if Grafana did not accept a push. The message contains the reason and a fix, but no token."""


class _Missing(PushError):
    """Raised if Grafana does not have the requested object."""


class Grafana:
    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._api = GrafanaApi.from_url(url, credential=token, timeout=TIMEOUT_SECONDS)

    def folder(self) -> Done:
        if self._got(lambda: self._api.folder.get_folder(FOLDER)) is not None:
            return Done("folder", _TITLE, "kept")
        self._answer_of(lambda: self._api.folder.create_folder(_TITLE, FOLDER))
        return Done("folder", _TITLE, "created")

    def source(self, prometheus: str) -> Done:
        """Create or update the data source: a Prometheus server at a URL that Grafana can reach."""
        name = f"{_TITLE} Prometheus"
        wanted = {"uid": SOURCE, "name": name, "type": "prometheus", "access": "proxy", "url": prometheus}
        known = self._got(lambda: self._api.datasource.get_datasource_by_uid(SOURCE))
        if known is None:
            self._answer_of(lambda: self._api.datasource.create_datasource(wanted))
            return Done("data source", name, "created")
        if all(known.get(key) == value for key, value in wanted.items()):
            return Done("data source", name, "kept")
        self._answer_of(lambda: self._api.datasource.update_datasource_by_uid(SOURCE, wanted))
        return Done("data source", name, "updated")

    def board(self, uid: str, board: Mapping[str, Any]) -> Done:
        """Create a board, or replace the board with this UID. Grafana keeps the earlier versions."""
        known = self._got(lambda: self._api.dashboard.get_dashboard(uid))
        if known is not None and _same(known["dashboard"], board):
            return Done("board", board["title"], "kept")
        wanted = {"dashboard": dict(board), "folderUid": FOLDER, "overwrite": True, "message": "stallwatch"}
        self._answer_of(lambda: self._api.dashboard.update_dashboard(wanted))
        return Done("board", board["title"], "created" if known is None else "updated")

    def annotation(self, incident: Incident) -> Done:
        """Create or update the annotation that marks the time of an incident on the boards."""
        mark = _mark(incident)
        wanted = {
            "time_from": round(incident.opened_at * 1000),
            "time_to": round((incident.resolved_at or incident.updated_at) * 1000),
            "tags": [TAG, incident.run, incident.severity, mark],
            "text": _text(incident),
        }
        found = self._answer_of(lambda: self._api.annotations.find_annotations(tags=[TAG, mark], limit=1))
        if not found:
            self._answer_of(lambda: self._api.annotations.add_annotation(dashboard_uid=RUN, **wanted))
            return Done("annotation", incident.id, "created")
        known = found[0]
        if known.get("timeEnd") == wanted["time_to"] and known.get("text") == wanted["text"]:
            return Done("annotation", incident.id, "kept")
        self._answer_of(lambda: self._api.annotations.update_annotation(known["id"], **wanted))
        return Done("annotation", incident.id, "updated")

    def _got(self, request: Any) -> Any:
        """Return the response from Grafana, or ``None`` if the requested object does not exist."""
        with suppress(_Missing):
            return self._answer_of(request)
        return None

    def _answer_of(self, request: Any) -> Any:
        try:
            answer = request()
        except GrafanaClientError as error:
            kind = _Missing if error.status_code == 404 else PushError
            raise kind(f"{self._url}: {error.message}{_remedy(error.status_code)}") from None
        except GrafanaException as error:
            raise PushError(f"{self._url}: {error.message}") from None
        except (InvalidSchema, InvalidURL, MissingSchema):
            raise PushError(
                f"{self._url} is not a valid address: it must begin with http:// or https://"
            ) from None
        except (RequestException, OSError) as error:
            raise PushError(
                f"{self._url} does not respond: {type(error).__name__}; check the address and the server"
            ) from None
        # For a web page, such as a proxy's error page, grafana-client returns the text (5.1.4, client.py).
        if not isinstance(answer, (dict, list)):
            raise PushError(f"{self._url} responded, but this server is not Grafana; check the address")
        return answer


def push(
    grafana: Grafana,
    boards: Mapping[str, Mapping[str, Any]],
    prometheus: str = "",
    incidents: Iterable[Incident] = (),
) -> Iterable[Done]:
    """Push the folder, the data source, the boards, and the annotations. Yield the result of each push.

    Raise `PushError` if Grafana rejects any of these objects.
    """
    yield grafana.folder()
    if prometheus:
        yield grafana.source(prometheus)
    for uid, board in boards.items():
        yield grafana.board(uid, board)
    for incident in incidents:
        yield grafana.annotation(incident)


def _same(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether the boards are equal, except for ID and version, which Grafana sets."""
    return all(known.get(key) == value for key, value in wanted.items() if key not in ("id", "version"))


def _mark(incident: Incident) -> str:
    """Return the tag that identifies the annotation of the incident."""
    # The tag contains a hash, because IDs of incidents can contain characters that URLs forbid.
    return "incident:" + hashlib.sha256(incident.id.encode()).hexdigest()[:16]


def _text(incident: Incident) -> str:
    title = render(incident.primary.title) if incident.primary is not None else incident.rule
    note = f": {render(incident.note)}" if incident.note else ""
    return f"{title} ({incident.rule}){note}"


def _remedy(status: int) -> str:
    return {
        401: "; set STALLWATCH_GRAFANA_TOKEN to a service account's token",
        403: "; the service account needs the Editor role, or the Admin role to create a data source",
        412: "; another board already has this name; rename or remove the other board",
    }.get(status, "")
