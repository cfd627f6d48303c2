"""Serve /metrics to authorized readers and announce its address. A failure never stops the training.

If the requested port is in use, the server takes the next free port.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from stallwatch_exporter.serving.authentication import Access, problems
from stallwatch_exporter.serving.connections import BoundedHandler, BoundedServer, ServerThread
from stallwatch_exporter.serving.discovery import announce
from stallwatch_exporter.serving.metrics import RunRegistry
from stallwatch_exporter.settings import ExporterSettings


class _Server(BoundedServer, WSGIServer):
    """WSGI server that idle connections cannot block."""


class _Handler(BoundedHandler, WSGIRequestHandler):
    def parse_request(self) -> bool:
        is_valid = super().parse_request()
        self.arrived()  # a body, if any, is not read
        return is_valid


class MetricsServer(ServerThread):
    """Running metrics endpoint at `url`."""

    def __init__(
        self,
        url: str,
        server: _Server,
        registry: CollectorRegistry,
        access: Access,
        announced: Path | None = None,
    ) -> None:
        self.url = url
        self._announced = announced
        self._scrapes = Scrapes(make_wsgi_app(registry))
        server.set_app(Gate(self._scrapes, access))
        super().__init__(server, "stallwatch-metrics")

    def linger(self, limit: float) -> bool:
        """Wait up to `limit` seconds for all scrapers to read the current values. Return whether they did.

        If no scraper has read any values before, return `False` immediately.
        """
        return self._scrapes.wait_for_all(limit)

    def close(self) -> None:
        """Stop serving and free the port."""
        if self._announced is not None:
            with contextlib.suppress(OSError):
                self._announced.unlink()
        super().close()


def serve(
    registry: CollectorRegistry, settings: ExporterSettings, notice: Callable[[str], None]
) -> MetricsServer | None:
    """Serve the registry, or print a notice and return ``None`` if /metrics cannot be served."""
    first = settings.port
    last = min(first + settings.port_tries, 65535) if first else 0
    try:
        tls = _tls(settings)
        if settings.server.mistake:
            raise ValueError(settings.server.mistake)
    except ValueError as error:
        notice(f"/metrics is not served: {error}")
        return None
    for port in range(first, last + 1):
        if port != first and port in settings.reserved_ports:
            continue
        try:
            server = _Server((settings.host, port), _Handler, tls)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            notice(f"/metrics cannot be served on {settings.host} ({error}); the run continues without it")
            return None
        bound = server.server_port
        if first and bound != first:
            notice(f"port {first} is in use; /metrics is served on port {bound}")
        for problem in problems(settings.server):
            notice(f"/metrics: {problem}")
        scheme = "https" if tls else "http"
        return MetricsServer(
            f"{scheme}://{_address(settings.host)}:{bound}/metrics",
            server,
            registry,
            Access(
                settings.server,
                names=[settings.host],
                is_authenticated=settings.tls_client_ca is not None,
                report=lambda text: notice(f"/metrics: {text}"),
            ),
            _announced(settings, bound, registry, notice),
        )
    notice(f"ports {first} to {last} are all in use; /metrics is not served")
    return None


def is_everywhere(host: str) -> bool:
    """Return whether a server that is bound to `host` listens on all addresses of this machine."""
    return host in ("", "0.0.0.0", "::")


def _announced(
    settings: ExporterSettings, port: int, registry: CollectorRegistry, notice: Callable[[str], None]
) -> Path | None:
    """Return the file that announces the endpoint to Prometheus, if this file is configured and writable."""
    if settings.sd_dir is None:
        return None
    target = f"{socket.gethostname() if is_everywhere(settings.host) else _address(settings.host)}:{port}"
    run = registry.run if isinstance(registry, RunRegistry) else ""
    try:
        return announce(settings.sd_dir, target, run, tls=settings.tls_certificate is not None)
    except OSError as error:
        notice(
            f"Prometheus cannot discover /metrics: {settings.sd_dir}: {error.strerror};"
            " set exporter.sd_dir to a folder that this account can write to"
        )
        return None


def _tls(settings: ExporterSettings) -> ssl.SSLContext | None:
    """Return the server's TLS context, or ``None`` if no TLS is configured.

    Raises `ValueError` for a partial configuration because the user expects an encrypted connection.
    """
    certificate, key, authority = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if certificate is None:
        if key is None and authority is None:
            return None
        given = " and ".join(name for name, path in (("tls_key", key), ("tls_client_ca", authority)) if path)
        raise ValueError(f"tls_certificate is not set; set it, or remove {given}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = certificate
    try:
        context.load_cert_chain(certificate, key)  # one PEM file can contain certificate and key
        if authority is not None:
            path = authority
            context.load_verify_locations(authority)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        raise ValueError(f"{path}: {error}") from error
    return context


def _address(host: str) -> str:
    """Return the address at which this machine can connect to a server bound to `host`."""
    if host in ("", "0.0.0.0"):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Gate:
    """Wrapper of the endpoint's application that serves only allowed requests."""

    def __init__(self, app: WSGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Return the response of the wrapped application, or the reason for a rejection.

        If a request repeats a header, wsgiref joins the values with a comma, which makes these headers
        invalid.
        """
        names = ("HTTP_HOST", "HTTP_ORIGIN", "HTTP_AUTHORIZATION")
        refusal = self._access.refusal(*([environ[name]] if name in environ else [] for name in names))
        if refusal is None:
            return self._app(environ, start_response)
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("X-Content-Type-Options", "nosniff")]
        if refusal.status is HTTPStatus.UNAUTHORIZED:
            headers += self._access.challenges
        start_response(f"{refusal.status.value} {refusal.status.phrase}", headers)
        return [f"{refusal.reason}\n".encode()]


#: Header that the dashboard sends to agents on other hosts. The dashboard cannot read the run folders of
#: these hosts, so it must read the end of a run from /metrics.
DASHBOARD_HEADER = "X-Stallwatch-Dashboard"
# Headers of the scrapers that must read the end of the run. Prometheus 2 sends the first header with every
# scrape (scrape/scrape.go). Programs that use or imitate the code of Prometheus also send this header:
# vmagent, Grafana Alloy, and the OpenTelemetry collector. Requests from people do not contain these headers.
_SCRAPERS = (
    "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS",
    f"HTTP_{DASHBOARD_HEADER.upper().replace('-', '_')}",
)
_GAPS = 5
_LATE = 1.5  # a scraper can be late by half an interval, plus a second
_GRACE = 1.0


class Scrapes:
    """Wrapper of the endpoint's application that records the times of scrapes."""

    def __init__(self, app: WSGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._changed = threading.Condition()
        self._began: dict[str, deque[float]] = {}  # start times of the answered scrapes, by scraper

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Return the response of the wrapped application."""
        scrapers = [header for header in _SCRAPERS if header in environ]
        if not scrapers:
            return self._app(environ, start_response)
        began = self._clock()
        body = list(self._app(environ, start_response))
        with self._changed:
            for scraper in scrapers:
                self._began.setdefault(scraper, deque(maxlen=_GAPS)).append(began)
            self._changed.notify_all()
        return body

    def patience(self, limit: float) -> float:
        """Return the number of seconds (at most `limit`) until the next scrapes, or 0 if none is expected."""
        return max(self._expected(limit).values(), default=0.0)

    def wait_for_all(self, limit: float) -> bool:
        """Wait until each expected scraper has received a response to a scrape that began after this call.

        Return `False` if this takes too long, or if no scraper is expected.
        """
        now = self._clock()
        expected = {scraper: seconds for scraper, seconds in self._expected(limit).items() if seconds}
        with self._changed:
            return self._changed.wait_for(
                lambda: bool(expected) and all(max(self._began[scraper]) >= now for scraper in expected),
                max(expected.values(), default=0.0),
            )

    def _expected(self, limit: float) -> dict[str, float]:
        """Return the number of seconds (at most `limit`) until the next expected scrape by each scraper."""
        with self._changed:
            began = {scraper: list(times) for scraper, times in self._began.items()}
        return {scraper: self._until_next(times, limit) for scraper, times in began.items()}

    def _until_next(self, began: Sequence[float], limit: float) -> float:
        gaps = [later - earlier for earlier, later in pairwise(began)]
        if not gaps:
            return limit
        wait = _LATE * max(gaps) + _GRACE
        return max(0.0, min(limit, began[-1] + wait - self._clock()))
