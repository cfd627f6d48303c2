"""Serves /metrics, on the next free port when the wanted one is taken; never a reason not to train."""

from __future__ import annotations

import errno
from collections.abc import Callable
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from stallwatch_exporter.serving.endpoint import Endpoint
from stallwatch_exporter.serving.lastlook import Scrapes, WSGIApp
from stallwatch_exporter.serving.registry import RunRegistry
from stallwatch_exporter.settings import ExporterSettings


class MetricsServer:
    """A running endpoint; `url` tells where."""

    def __init__(self, url: str, server: WSGIServer, thread: Thread, registry: CollectorRegistry) -> None:
        self.url = url
        self._server = server
        self._thread = thread
        app: WSGIApp = server.get_app()  # type: ignore[assignment]  # prometheus_client sets one
        self._scrapes = Scrapes(Endpoint(app, registry) if isinstance(registry, RunRegistry) else app)
        server.set_app(self._scrapes)

    def linger(self, limit: float) -> bool:
        """Let a Prometheus that scraped before read what is there now; at most `limit` seconds.

        At once, and `False`, where none did.
        """
        return self._scrapes.wait_for_one(limit)

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(
    registry: CollectorRegistry, settings: ExporterSettings, notice: Callable[[str], None]
) -> MetricsServer | None:
    """Serve the registry; ``None``, with a notice, where no port can be had."""
    first = settings.port
    last = min(first + settings.port_tries, 65535) if first else 0
    try:
        tls = _tls(settings)
    except ValueError as error:
        notice(f"/metrics is not served: {error}")
        return None
    for port in range(first, last + 1):
        if port != first and port in settings.reserved_ports:
            continue
        try:
            server, thread = start_http_server(
                port,
                settings.host,
                registry,
                **tls,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            notice(f"/metrics cannot be served on {settings.host} ({error}); the run goes on without")
            return None
        bound = server.server_port
        if first and bound != first:
            notice(f"port {first} is taken: /metrics is on port {bound}")
        scheme = "https" if tls else "http"
        return MetricsServer(
            f"{scheme}://{_address(settings.host)}:{bound}/metrics", server, thread, registry
        )
    notice(f"ports {first} to {last} are all taken; /metrics is not served")
    return None


def _tls(settings: ExporterSettings) -> dict[str, Any]:
    """What the server needs for TLS; nothing where none is asked for.

    Whoever asks for a part of it means to be protected: what is incomplete must not end in plain HTTP.
    """
    certificate, key, authority = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if certificate is None:
        if key is None and authority is None:
            return {}
        told = " and ".join(name for name, path in (("tls_key", key), ("tls_client_ca", authority)) if path)
        raise ValueError(f"{told} without tls_certificate; name that file too, or leave all of them out")
    return {
        "certfile": str(certificate),
        "keyfile": str(key or certificate),  # one PEM file may hold both
        "client_cafile": str(authority) if authority else None,
        "client_auth_required": authority is not None,
    }


def _address(host: str) -> str:
    """Where to reach what is bound to `host`, from this machine."""
    if host in ("", "0.0.0.0"):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host
