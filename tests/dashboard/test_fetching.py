"""One GET request to a real server that misbehaves."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from stallwatch_dashboard.data.scraper import ScrapeError, endpoint, fetch


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._answer(200, b"stallwatch_step 1\n", "text/plain")
        elif self.path == "/html":
            self._answer(200, b"<html></html>", "text/html; charset=utf-8")
        elif self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "/metrics")
            self.end_headers()
        elif self.path == "/huge":
            self._answer(200, b"x" * 5000, "text/plain")
        elif self.path == "/drip":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.02)
            except OSError:
                pass
        elif self.path == "/garbage":
            self.wfile.write(b"\x00\xff not http \r\n\r\n")
        else:
            self._answer(500, b"", "text/plain")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


def test_page_is_returned_as_text(server: str) -> None:
    assert fetch(f"{server}/metrics") == "stallwatch_step 1\n"


def test_proxy_variables_are_ignored(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert fetch(f"{server}/metrics") == "stallwatch_step 1\n"


@pytest.mark.parametrize(
    ("path", "expected", "seconds"),
    [
        ("/html", "web page", 60.0),
        ("/away", "HTTP 302", 60.0),
        ("/broken", "HTTP 500", 60.0),
        ("/huge", "sends more than", 60.0),
        ("/drip", "too slow", 0.2),
        ("/garbage", "does not answer", 60.0),
    ],
)
def test_bad_responses_are_described(server: str, path: str, expected: str, seconds: float) -> None:
    with pytest.raises(ScrapeError, match=expected):
        fetch(server + path, most_bytes=4000, most_seconds=seconds)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "/etc/passwd"])
def test_only_http_is_fetched(url: str) -> None:
    with pytest.raises(ScrapeError, match="not an HTTP address"):
        fetch(url)


def test_unreachable_server_is_an_error(server: str) -> None:
    with pytest.raises(ScrapeError, match="does not answer"):
        fetch("http://127.0.0.1:9/metrics")


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("node7:19400", "http://node7:19400/metrics"),
        ("http://node7:19400", "http://node7:19400/metrics"),
        ("https://node7/agent/metrics", "https://node7/agent/metrics"),
    ],
)
def test_targets_can_be_short_or_complete_urls(target: str, url: str) -> None:
    assert endpoint(target) == url


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://", "ssh://node7"])
def test_invalid_targets_are_refused(target: str) -> None:
    with pytest.raises(ScrapeError):
        endpoint(target)
