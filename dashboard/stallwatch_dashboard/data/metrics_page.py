"""Fetch and parse an agent's metrics page.

The size of the page and the time of the request are limited, because any program could listen on the agent's
port.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from stallwatch_rules.locale import render
from stallwatch_rules.messages import message

PREFIX = "stallwatch_"
IDENTITY = "stallwatch_run_info"
MOST_READINGS = 50_000
MOST_BYTES = 8 * 1024 * 1024
MOST_SECONDS = 3.0  #: maximum number of seconds for the whole response
_SOCKET_SECONDS = 1.5
# The many buckets of a histogram are omitted, because sum and count are enough for the step time.
_LEFT_OUT = ("_bucket", "_created")
_NOT_IN_SERIES = ("__name__", "run", "rank", "instance", "job")  #: Prometheus itself adds the last two labels


class Reading(NamedTuple):
    run: str
    metric: str
    rank: int | None
    labels: str  #: the labels other than run and rank, as sorted JSON, or "" if there are none
    value: float
    agent: str = ""  #: ``host:port`` if the run can have several agents, otherwise ""


class ScrapeError(Exception):
    def __init__(self, key: str, **params: str | int) -> None:
        self.why = message(f"dashboard.{key}", **params)
        super().__init__(render(self.why))


def parse(text: str, port: int | str = "") -> list[Reading]:
    """Return the readings on a metrics page. Raise `ScrapeError` if the page is not from Stallwatch."""
    readings: list[Reading] = []
    agents: dict[str, str] = {}
    try:
        for family in text_string_to_metric_families(text):
            if not family.name.startswith(PREFIX):
                continue
            for sample in family.samples:
                if sample.name.endswith(_LEFT_OUT):
                    continue
                run, which = sample.labels.get("run", ""), series_of(sample.labels)
                if sample.name == IDENTITY and (agent := agent_of(sample.labels, port)):
                    agents[run] = agent
                readings.append(Reading(run, sample.name, *which, float(sample.value)))
                if len(readings) > MOST_READINGS:
                    raise ScrapeError("source_too_many_numbers", most=MOST_READINGS)
    except ScrapeError:
        raise
    except Exception as error:  # the parser raises ValueError, IndexError, or KeyError on broken tokens
        raise ScrapeError("source_not_metrics", error=type(error).__name__) from error
    if agents:
        return [reading._replace(agent=agents.get(reading.run, "")) for reading in readings]
    return readings


def agent_of(labels: Mapping[str, str], port: int | str) -> str:
    """Return an agent's ``host:port`` from the ``run_info`` labels, or "" if the run has only one agent."""
    return f"{labels.get('host', '')}:{port}" if labels.get("job_id") else ""


def series_of(labels: Mapping[str, str]) -> tuple[int | None, str]:
    """Return the rank and the other labels of a series, in the form of `Reading.labels`."""
    rank = labels.get("rank", "")
    rest = {name: text for name, text in labels.items() if name not in _NOT_IN_SERIES}
    written = json.dumps(rest, sort_keys=True, ensure_ascii=False) if rest else ""
    return int(rank) if rank.isdecimal() else None, written


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


# Do not use a proxy, even if the environment names one, because agents are on this host or in its network.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def endpoint(target: str) -> str:
    """Return the metrics address of a target such as "node7:19400" or a full URL."""
    url = target if "://" in target else f"http://{target}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ScrapeError("source_target_not_http", target=target)
    return url if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/metrics"


def fetch(
    url: str,
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    most_bytes: int = MOST_BYTES,
    most_seconds: float = MOST_SECONDS,
) -> str:
    """Return the text of the page at `url`, or raise `ScrapeError`. `headers` are sent with the request."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ScrapeError("source_not_http")
    deadline = time.monotonic() + most_seconds
    request = urllib.request.Request(
        url, headers={"Accept": "text/plain;version=0.0.4", "User-Agent": "stallwatch", **headers}
    )
    try:
        with _opener.open(request, timeout=_SOCKET_SECONDS) as answer:
            if "html" in (answer.headers.get("Content-Type") or ""):
                raise ScrapeError("source_web_page")
            return _body(answer, deadline, most_bytes).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        raise ScrapeError("source_http_status", status=error.code) from error
    except ScrapeError:
        raise
    # Refused, reset, or slow connections, bad headers, and bad addresses all mean that there is no page.
    except Exception as error:
        reason = str(getattr(error, "reason", None) or type(error).__name__)
        raise ScrapeError("source_no_answer", reason=reason) from error


def _body(answer: Any, deadline: float, most_bytes: int) -> bytes:
    """Return the response's body. Read it in small pieces, so that a slow server cannot block a thread."""
    chunks: list[bytes] = []
    size = 0
    while chunk := answer.read1(64 * 1024):
        size += len(chunk)
        if size > most_bytes:
            raise ScrapeError("source_too_large", mebibytes=most_bytes // 1024**2)
        if time.monotonic() > deadline:
            raise ScrapeError("source_too_slow")
        chunks.append(chunk)
    return b"".join(chunks)
