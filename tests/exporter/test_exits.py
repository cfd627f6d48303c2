"""With which status a rank ended is seen from beside, before its launcher asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch_exporter.rings.exits import Exits

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells")


@pytest.fixture
def exits() -> Iterator[Exits]:
    made = Exits()
    yield made
    made.close()


def child(end: str) -> subprocess.Popen[bytes]:
    """Ends in this way once it is told to."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import os, signal, sys\nsys.stdin.read()\n{end}"], stdin=subprocess.PIPE
    )


def let_end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def wait_for(exits: Exits, key: Path) -> int:
    until = time.monotonic() + 120
    while key not in exits.codes:
        assert time.monotonic() < until, "nobody told"
        time.sleep(0.01)
    return exits.codes[key]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("", 0),
    ],
)
def test_an_end_is_seen_while_nobody_has_asked_for_it(exits: Exits, end: str, code: int) -> None:
    with child(end) as process:
        try:
            exits.watch(Path("0.ring"), process.pid, time.time())
            assert exits.codes == {}
            let_end(process)
            assert wait_for(exits, Path("0.ring")) == code
        finally:
            process.kill()


def test_whoever_is_gone_or_another_is_not_watched(exits: Exits) -> None:
    with child("") as process:
        exits.watch(Path("early.ring"), process.pid, 1.0)  # the number was another's then
        exits.watch(Path("there.ring"), process.pid, time.time())
        let_end(process)
        wait_for(exits, Path("there.ring"))
    exits.watch(Path("late.ring"), process.pid, time.time())
    assert exits.codes == {Path("there.ring"): 0} and exits._watched == {}


def test_one_that_is_up_at_the_end_keeps_nothing_open(exits: Exits) -> None:
    with child("") as process:
        exits.watch(Path("0.ring"), process.pid, time.time())
        (fd,) = exits._watched
        exits.close()
        assert exits._watched == {} and exits._epoll is None
        let_end(process)
    assert fd >= 0 and exits.codes == {}
