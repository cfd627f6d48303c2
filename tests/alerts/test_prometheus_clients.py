"""Queries to a user's servers: the password goes only to them, and a wrong address gives a clear error."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stallwatch_alerts.prometheus.clients import NoAnswer, Server


class Answering:
    """Server that records the passwords of requests, and redirects requests for ``/away``."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        self.elsewhere = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.seen.append(self.headers["Authorization"])
                away = self.path == "/away"
                self.send_response(302 if away else 200)
                if away:
                    self.send_header("Location", outer.elsewhere)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.host = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def pair() -> Iterator[tuple[Answering, Answering]]:
    one, other = Answering(), Answering()
    yield one, other
    for each in (one, other):
        each.server.shutdown()
        each.server.server_close()


def test_password_is_sent_only_to_its_server(
    pair: tuple[Answering, Answering],
) -> None:
    one, other = pair
    one.elsewhere = f"http://{other.host}/"
    asking = Server(f"http://me:p%40ss%2F@{one.host}")
    assert asking.get("/") == {} and asking.get("/away") == {}
    wanted = "Basic " + base64.b64encode(b"me:p@ss/").decode()
    assert one.seen == [wanted, wanted] and other.seen == [None]


@pytest.mark.parametrize("address", ["localhost:abc", "http://127.0.0.1:9", "http://[::1"])
def test_invalid_address_is_reported_without_its_password(address: str) -> None:
    with pytest.raises((NoAnswer, ValueError)) as caught:
        Server(address.replace("//", "//me:s3cr3t@") if "//" in address else address).get("/x")
    assert "s3cr3t" not in str(caught.value)
