"""Measure the time from a log line to a chat message, and the effect of a burst of incidents.

    make bench-alerts

To measure the embedded path, the benchmark starts `stallwatch tail` on eight files. A thread writes 1,000
lines per second to these files. From time to time, the benchmark adds a line that a rule matches, and a
webhook on this machine records when the notification arrives. If Prometheus, Alertmanager, and the relay
are installed, the benchmark also measures the time from a crash to a message that they send to a chat.
Finally, the benchmark raises 10,000 incidents within a minute for a chat that accepts 20 messages per
minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster_messages import Receiver

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.notice import Notice
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.store import IncidentStore
from stallwatch_alerts.store_sink import StoreSink
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.pages.page import RulePage

ROOT = Path(__file__).resolve().parent.parent
STALLWATCH = str(Path(sys.executable).with_name("stallwatch"))
SOURCES = 8
LINES_A_SECOND = 1000
PROMISED = 1.0  #: the promised 99th percentile of the delay, in seconds
BURST = 10_000
_TICK = 0.02


class Writers:
    """A background writer that appends lines to eight logs at a steady pace.

    The logs contain no steps, because a step after a failure would count as a recovery.
    """

    def __init__(self, folder: Path) -> None:
        self.files = [(folder / f"rank{rank}.log").open("a", buffering=1) for rank in range(SOURCES)]
        self.written = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, source: int, text: str) -> float:
        """Write the text to one log and return the time of the write."""
        with self._lock:
            self.files[source].write(text.rstrip("\n") + "\n")
            return time.time()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        begun, step = time.monotonic(), 0
        while not self._ended.wait(_TICK):
            due = int((time.monotonic() - begun) * LINES_A_SECOND)
            while self.written < due:
                source = self.written % SOURCES
                step += source == 0
                with self._lock:
                    self.files[source].write(f"INFO loader: batch {step}, {step % 17} ms, shard {source}\n")
                self.written += 1


def tellable(catalogue: Catalogue) -> list[RulePage]:
    """Return the rules that cause a notification during a run as soon as one line matches."""
    return [
        page
        for page in catalogue.pages.values()
        if page.role == "cause"
        and page.harm == "fatal"
        and page.patterns
        and page.fires
        and not page.requires
    ]


def embedded(count: int) -> tuple[list[float], int, float]:
    """Measure the delay from a log line to the notification of `stallwatch tail`.

    Return the delays in seconds, the number of lines without a notification, and the lines per second.
    """
    pages = tellable(load_catalogue())
    random.Random(7).shuffle(pages)
    with Receiver() as webhook, tempfile.TemporaryDirectory(prefix="stallwatch-bench-") as name:
        folder = Path(name)
        writers = Writers(folder)
        for rank in range(SOURCES):
            writers.say(rank, "{'loss': 2.1, 'epoch': 0.0} step 0")
        environ = {
            **os.environ,
            "STALLWATCH_HOME": str(folder / "state"),
            "STALLWATCH_ALERTS_URLS": webhook.url,
        }
        command = [STALLWATCH, "tail", str(folder / "rank*.log"), "--name", "bench", "--port", "0"]
        agent = subprocess.Popen(
            command, env=environ, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _until_up(folder / "state" / "runs" / "bench" / "agent.json")
            begun = time.monotonic()
            writers.start()
            time.sleep(5)  # during this time, the agent learns the pace of the logs
            printed_at = {
                page.id: writers.say(at % SOURCES, page.fires[0]) for at, page in _paced(pages[:count])
            }
            time.sleep(5)
            pace = writers.written / (time.monotonic() - begun)
        finally:
            writers.close()
            agent.terminate()
            agent.wait(60)
    received_at = {rule: _received_at(webhook, rule) for rule in printed_at}
    delays = [at - printed_at[rule] for rule, at in received_at.items() if at is not None]
    return sorted(delays), sum(at is None for at in received_at.values()), pace


def _received_at(webhook: Receiver, rule: str) -> float | None:
    """Return the time when the first finding of the rule arrived, or ``None`` if no finding arrived."""
    arrivals = ((at, str(body.get("incidents") or body["id"])) for at, body in webhook.messages)
    return next((at for at, incidents in arrivals if f"/finding/{rule}/" in incidents), None)


def _paced(pages: Sequence[RulePage]) -> Any:
    for at, page in enumerate(pages):
        time.sleep(0.3 + random.random() * 0.4)
        yield at, page


def _until_up(record: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if json.loads(record.read_text()).get("state") not in ("", "starting"):
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.1)
    raise SystemExit("stallwatch tail did not start")


def through_prometheus(count: int) -> list[float] | None:
    """Return the delays, in seconds, between crashes and their messages in the chat.

    Return ``None`` if Prometheus, Alertmanager, or the relay is not installed.
    """
    found = importlib.util.spec_from_file_location("servers", ROOT / "tests" / "acceptance" / "servers.py")
    assert found is not None and found.loader is not None
    servers = importlib.util.module_from_spec(found)
    sys.modules["servers"] = servers
    found.loader.exec_module(servers)
    if servers.missing():
        return None
    delays: list[float] = []
    while len(delays) < count:
        with tempfile.TemporaryDirectory(prefix="stallwatch-bench-") as name:
            stack = servers.Stack(Path(name), ROOT)
            try:
                stack.start("alertmanager", "relay", "prometheus")
                for number in range(min(count - len(delays), len(servers.AGENTS))):
                    delays.append(_crash(stack, f"crash-{number}"))
            finally:
                stack.close()
    return sorted(delays)


def _crash(stack: Any, name: str) -> float:
    training = stack.train(name)
    time.sleep(12 + random.random() * 5)  # a few scrapes, then a random time between two scrapes
    begun = time.monotonic()
    training.order("crash")
    while not stack.chat.about(name):
        if time.monotonic() - begun > 120:
            raise SystemExit("no alert arrived through Prometheus")
        time.sleep(0.05)
    return time.monotonic() - begun


class Robot:
    """A simulated chat that accepts 20 messages per minute and counts the incidents in these messages."""

    name = "robot"

    def __init__(self) -> None:
        self.times: list[float] = []
        self.notified = self.refused = 0

    def send(self, notice: Notice) -> None:
        now = time.monotonic()
        if sum(now - at < 60 for at in self.times) >= 20:
            self.refused += 1
            raise RuntimeError("too many messages")
        self.times.append(now)
        self.notified += int(notice.facts.get("count") or 1)


def burst(count: int, seconds: float) -> list[tuple[str, str]]:
    """Raise `count` incidents within `seconds` and return table rows about the store and the chat."""
    robot, catalogue = Robot(), Catalogue.of([])
    with tempfile.TemporaryDirectory(prefix="stallwatch-bench-") as name:
        home = Path(name)
        kept = StoreSink(lambda: IncidentStore.at_home(home))
        chats = ChatSink(
            AlertSettings(urls=("dingtalk://abcdefgh1234",)),
            catalogue,
            spool=lambda: Outbox(IncidentStore.at_home(home).engine),
            connect=lambda _: robot,
        )
        before = _memory()
        begun, slowest = time.monotonic(), 0.0
        for number in range(count):
            incident = _incident(number)
            started = time.perf_counter()
            chats(incident)
            kept(incident)
            slowest = max(slowest, time.perf_counter() - started)
            time.sleep(max(0.0, begun + seconds * number / count - time.monotonic()))
        fed = time.monotonic() - begun
        grown = _memory() - before
        kept.close(60)
        chats.close(90)
        stored = len(IncidentStore.at_home(home).list())
        size = sum(file.stat().st_size for file in home.iterdir()) / 2**20
    return [
        ("incidents raised", f"{count} in {fed:.0f} s"),
        ("incidents in the store", str(stored)),
        ("incidents sent to the chat", str(robot.notified)),
        ("messages accepted, refused", f"{len(robot.times)}, {robot.refused}"),
        ("longest wait for store and chat", f"{1000 * slowest:.1f} ms"),
        ("memory growth, disk usage", f"{grown:.0f} MiB, {size:.0f} MiB"),
    ]


def _incident(number: int) -> Incident:
    now = time.time()
    return Incident(
        id=f"run-{number}/finding/cuda-oom/1",
        run=f"run-{number}",
        kind="finding",
        rule="cuda-oom",
        severity="critical" if number % 3 else "warning",
        status="open",
        episode=1,
        opened_at=now,
        updated_at=now,
        evidence=["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
    )


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _row(name: str, delays: Sequence[float]) -> str:
    at = [delays[min(len(delays) - 1, int(share * len(delays)))] for share in (0.5, 0.9, 0.99)]
    cells = [f"{1000 * value:8.0f} ms" for value in (*at, delays[-1])]
    return f"{name:34}" + "".join(cells) + f"{len(delays):7}"


def main() -> int:
    """Print the tables. If a promise is not kept, return the exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--lines", type=int, default=100, help="number of lines that match a rule (default: 100)"
    )
    parser.add_argument(
        "--crashes", type=int, default=5, help="number of crashes reported through Prometheus (default: 5)"
    )
    parser.add_argument(
        "--burst", type=int, default=BURST, help=f"number of incidents in a minute (default: {BURST})"
    )
    given = parser.parse_args()
    good = True
    print(f"{'delay from the line to the chat':34}{'p50':>11}{'p90':>11}{'p99':>11}{'longest':>11}{'n':>7}")
    if given.lines:
        delays, silent, pace = embedded(given.lines)
        print(_row(f"embedded, {pace:.0f} lines/s on {SOURCES} files", delays), flush=True)
        p99 = delays[min(len(delays) - 1, int(0.99 * len(delays)))]
        good = p99 <= PROMISED
        print(f"  ({silent} more lines caused no message; the mean delay is {statistics.mean(delays):.2f} s)")
    if given.crashes:
        slow = through_prometheus(given.crashes)
        print(
            "through Prometheus: not measured, because it is not installed"
            if slow is None
            else _row("through Prometheus (a crash)", slow)
        )
    if given.burst:
        print()
        rows = burst(given.burst, 60.0)
        for name, value in rows:
            print(f"{name:34}{value}")
        good = good and rows[1][1] == rows[2][1] == str(given.burst) and rows[3][1].endswith(", 0")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
