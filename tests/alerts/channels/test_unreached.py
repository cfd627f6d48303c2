"""Without an answer, the error has a short reason and a fix."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from stallwatch_alerts.channels.errors import known_failure
from stallwatch_alerts.trial import test_message as send_test_message


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        if self.path.endswith("rude"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b"Client sent an HTTP request to an HTTPS server.\n")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "reason", "remedy", "chinese"),
    [
        ("json://127.0.0.1:1/s3cr3t", "connection refused", "the host, the port", "端口"),
        ("ntfy://127.0.0.1:1/s3cr3t", "connection refused", "the host, the port", "端口"),
        (
            "mailto://u:s3cr3t@127.0.0.1:1?to=a@b.org&from=c@b.org",
            "connection refused",
            "the host, the port",
            "端口",
        ),
        ("json://no-such-host.invalid/s3cr3t", "the host's name cannot be resolved", "name", "主机名"),
        ("json://127.0.0.1:99999/s3cr3t", "the host or the port is invalid", "65535", "65535"),
        (
            "jsons://127.0.0.1:{port}/s3cr3t",
            "the port does not use TLS",
            "json:// instead of jsons://",
            "改为 json://",
        ),
        ("json://127.0.0.1:{port}/s3cr3t", "the port accepts only HTTPS", "jsons://", "jsons://"),
        ("json://127.0.0.1:{port}/rude", "the connection was closed before a response arrived", "TLS", "TLS"),
        (
            "http://127.0.0.1:{port}/s3cr3t",
            "no supported chat uses this web address",
            "json://… for a generic",
            "json://",
        ),
        (
            "slakc://s3cr3t/b/c",
            "unknown channel 'slakc'; did you mean 'slack'?",
            "docs/chats.md",
            "docs/",
        ),
        ("s3cr3t", "not a URL: it has no scheme", "docs/chats.md", "docs/chats.md"),
    ],
)
def test_connection_error_has_a_short_reason_and_a_remedy(
    port: int, url: str, reason: str, remedy: str, chinese: str
) -> None:
    (found,) = send_test_message([url.format(port=port)], "en")
    assert not found.delivered and found.reason.startswith(reason)
    assert len(found.reason) < 120 and "s3cr3t" not in found.reason + found.remedy + found.url
    assert remedy in found.remedy
    (found,) = send_test_message([url.format(port=port)], "zh")
    assert chinese in found.remedy


@pytest.mark.parametrize(
    ("said", "reason", "code"),
    [
        (
            "SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
            "self-signed certificate (_ssl.c:1006)'))",
            "the server's certificate was not accepted (self-signed certificate)",
            "tls",
        ),
        (
            "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert",
            "the TLS connection failed (tlsv1 alert protocol version)",
            "tls",
        ),
        (
            "Caused by ProxyError('Cannot connect to proxy.', … Connection refused",
            "the proxy refused the connection",
            "proxy",
        ),
        ("HTTPSConnectionPool: Read timed out. (read timeout=4.0)", "no response in time", "timeout"),
        ("[Errno 101] Network is unreachable", "no route to the host", "unreachable"),
        ("[Errno 111] Connexion refusée", "connection refused", "refused"),
        ("[WinError 10061] the target machine actively refused it", "connection refused", "refused"),
    ],
)
def test_reason_is_extracted_from_library_errors(said: str, reason: str, code: str) -> None:
    failure = known_failure(said)
    assert failure is not None and (str(failure), failure.code) == (reason, code)


def test_other_errors_have_no_connection_reason() -> None:
    for said in ("535 Authentication failed", "all recipients were refused: 550", "the token was refused"):
        assert known_failure(said) is None
