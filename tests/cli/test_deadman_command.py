"""`stallwatch run` pings the dead man's switch at its start, while it watches, and at its end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@pytest.fixture
def switch() -> Iterator[tuple[str, list[str]]]:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/s3cr3t-check", paths
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("code", "last"), [(0, "/s3cr3t-check"), (3, "/s3cr3t-check/fail")])
def test_switch_receives_the_result_of_a_run(
    process: Callable[..., Any], switch: tuple[str, list[str]], code: int, last: str
) -> None:
    url, paths = switch
    program = f"import sys; print('step 1/2', flush=True); sys.exit({code})"
    done = process(
        *("run", "--no-metrics", "--", sys.executable, "-c", program),
        env={"STALLWATCH_ALERTS_DEADMAN_URL": url},
    )
    assert done.returncode == code
    assert paths == ["/s3cr3t-check/start", "/s3cr3t-check", last]
    assert "s3cr3t" not in done.stdout + done.stderr
