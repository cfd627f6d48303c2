"""Faults for the trials. Each function changes a trial before the trial starts or while it runs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fault_trials import SECONDS, Trial, stages
from machine import free_port

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "machine"))

from postgres import Postgres, programs

_LONGEST_AWAY = 3.0


def nothing(_: Trial) -> None:
    """Inject no fault, to show whether Stallwatch breaks a guarantee even without a fault."""


# ---- the agent


def agent_killed(trial: Trial) -> None:
    """Send SIGKILL to the agent at a random moment or while it stores or sends an incident."""
    when = trial.random.choice(("at random", "at random", "as it records", "as it sends"))
    trial.detail(when)
    if when == "as it sends":
        trial.chat.on_request = lambda: trial.kill(signal.SIGKILL)
        return
    if when == "at random":
        trial.at(trial.moment, lambda: trial.kill(signal.SIGKILL))
        return
    pause = trial.random.choice((0.0, trial.random.uniform(0.0, 0.1)))

    def follow() -> None:
        end = time.monotonic() + SECONDS[trial.scenario] + 5
        while time.monotonic() < end:
            for journal in trial.home.glob("runs/*/incidents.jsonl"):
                if journal.stat().st_size:
                    time.sleep(pause)
                    trial.kill(signal.SIGKILL)
                    return
            time.sleep(0.002)

    trial.beside(follow)


def agent_terminated(trial: Trial) -> None:
    """Send SIGTERM to the agent, which forwards the signal to the command."""
    trial.at(trial.moment, lambda: trial.kill(signal.SIGTERM))


def agent_stopped(trial: Trial) -> None:
    """Send SIGSTOP to the agent and send SIGCONT some time later.

    If a hang ends while the agent is stopped, the agent does not report the hang. Therefore, the training
    crashes at the end, and the benchmark expects the opening message of the hang only if the agent ran for
    long enough.
    """
    if trial.scenario == "hang":
        trial.scenario = trial.result.scenario = "lingering-crash"
    moment, length = trial.moment, trial.random.uniform(0.3, 2.5)

    def stop() -> None:
        begin = time.time()
        if trial.kill(signal.SIGSTOP):
            trial.asleep = (begin, math.inf)

    def wake() -> None:
        if trial.kill(signal.SIGCONT):
            trial.asleep = (trial.asleep[0], time.time())

    trial.at(moment, stop)
    trial.at(moment + length, wake)


# ---- the agent's disk


def _mounted(trial: Trial, options: str) -> Callable[[str], None]:
    """Mount a tmpfs at the state folder. Return a function that remounts this tmpfs with new options."""
    trial.home.mkdir(exist_ok=True)
    _call("mount", "-t", "tmpfs", "-o", options, "faults", str(trial.home))
    trial.closing.append(lambda: _call("umount", "-l", str(trial.home)))
    return lambda changed: _call("mount", "-o", f"remount,{changed}", str(trial.home))


def disk_full(trial: Trial) -> None:
    """Limit the number of pages or files in the state folder's tmpfs. The limit differs between trials."""
    pages = trial.index * 7 % 150 + 1
    kind = trial.random.choice(("size", "size", "size", "inodes"))
    if kind == "size":
        trial.detail(f"{4 * pages} KiB")
        again = _mounted(trial, f"size={4 * pages}k")
    else:
        trial.detail(f"{pages % 40 + 1} files")
        again = _mounted(trial, f"size=16m,nr_inodes={pages % 40 + 1}")
    freed = trial.random.random() < 0.5
    if freed:
        trial.detail("then freed")
        trial.at(trial.moment, lambda: again("size=64m,nr_inodes=10000"))
    trial.healing.append(lambda: again("size=64m,nr_inodes=10000"))


def write_errors(trial: Trial) -> None:
    """Make one of the agent's writes fail, or all writes from that one on. Later trials use later writes."""
    number = trial.index // 2 + 1
    code = trial.random.choice(("ENOSPC", "EIO", "EROFS", "EDQUOT"))
    mode = ("once", "on")[trial.index % 2]
    trial.detail(f"call {number} {code} {mode}")
    trial.hook("FAULTS_FAIL", f"{number}:{code}:{mode}:{trial.home}")


def read_only(trial: Trial) -> None:
    """Make the state folder read-only, either from the start or from a random moment."""
    again = _mounted(trial, "size=64m")
    if trial.random.random() < 0.5:
        trial.detail("from the start")
        again("ro")
    else:

        def seal() -> None:
            with contextlib.suppress(RuntimeError):  # fails while a file is open for writing
                again("ro")

        trial.detail("later")
        trial.at(trial.moment, seal)
    trial.healing.append(lambda: again("rw"))


# ---- the machine


def clock_steps(trial: Trial) -> None:
    """Move the wall clock once or twice while the agent and the training run."""
    stamp = trial.folder / "clock"
    stamp.write_text("0")
    trial.environ |= {"FAULTS_CLOCK": str(stamp), "PYTHONPATH": trial.hooked_path()}
    for _ in range(trial.random.choice((1, 1, 2))):
        by = trial.random.choice((-86400, -7200, -60, -3, 3, 60, 7200, 86400, 40 * 86400))
        moment = trial.moment
        trial.detail(f"{by:+} s after {moment:.1f} s")

        def set_clock(by: int = by) -> None:
            stamp.with_suffix(".new").write_text(str(by))
            stamp.with_suffix(".new").replace(stamp)

        trial.at(moment, set_clock)


def descriptors(trial: Trial) -> None:
    """Limit the number of files that the agent can open. The limit differs between trials."""
    number = 12 + trial.index * 3 % 60
    trial.detail(f"{number} files")
    trial.hook("FAULTS_LIMIT", f"nofile:{number}")
    trial.may_lose = True


def memory(trial: Trial) -> None:
    """Limit the agent's address space. The limit in MB differs between trials."""
    number = 80 + trial.index * 37 % 900
    trial.detail(f"{number} MB")
    trial.hook("FAULTS_LIMIT", f"as:{number * 1024 * 1024}")
    trial.may_lose = True


def port_taken(trial: Trial) -> None:
    """Have another process use the port of /metrics."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    trial.closing.append(taken.close)
    trial.environ["STALLWATCH_EXPORTER_PORT"] = str(taken.getsockname()[1])
    trial.options += ["--port", str(taken.getsockname()[1])]


# ---- the chat


def chat_down(trial: Trial) -> None:
    """Refuse connections to the chat from the start or a random moment, for a while or until the run ends."""
    away, back = (0.0, trial.moment) if trial.random.random() < 0.5 else (trial.moment, 0.0)
    if not away:
        trial.chat.down()
    else:
        trial.at(away, trial.chat.down)
        back = away + trial.random.uniform(0.3, _LONGEST_AWAY)
    if trial.random.random() < 0.7:
        trial.detail(f"for {back - away:.1f} s from {away:.1f} s on")
        trial.at(back, trial.chat.up)
    else:
        trial.detail(f"from {away:.1f} s on")
    trial.healing.append(trial.chat.up)


def _answers(*kinds: str) -> Callable[[Trial], None]:
    def prepare(trial: Trial) -> None:
        trial.chat.script = [trial.random.choice(kinds) for _ in range(trial.random.randint(1, 3))]
        trial.detail(" ".join(trial.chat.script))

    prepare.__doc__ = f"The chat's next answers: {', '.join(kinds)}."
    return prepare


def chat_takes_and_breaks(trial: Trial) -> None:
    """Accept a message and break the connection before or during the response."""
    trial.chat.script = ["ok"] * trial.random.randint(0, 1) + [trial.random.choice(("taken-reset", "cut"))]
    trial.detail(trial.chat.script[-1])


# ---- the databases


def sqlite_locked(trial: Trial) -> None:
    """Have another process repeatedly lock the databases in the state folder."""
    ended = threading.Event()
    trial.healing.append(ended.set)
    lengths = [trial.random.uniform(0.2, 4.0) for _ in range(20)]

    def hold() -> None:
        for length in lengths:
            held = []
            for path in trial.home.glob("*.db"):
                connection = sqlite3.connect(path, timeout=0.1, isolation_level=None)
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("BEGIN EXCLUSIVE")
                held.append(connection)
            ended.wait(length if held else 0.05)
            for connection in held:
                connection.close()
            if ended.wait(0.05):
                return

    trial.beside(hold)


_servers: list[Postgres] = []
_making = threading.Lock()
_using = threading.Lock()  # one trial at a time uses PostgreSQL


def postgres() -> Postgres:
    """Return the PostgreSQL server of this benchmark. Start the server on the first call."""
    with _making:
        if not _servers:
            found = programs()
            assert found is not None  # without PostgreSQL, `left_out` excludes the fault
            _servers.append(Postgres(found))
        return _servers[0]


def _missing(name: str) -> str:
    """Return the requirement for a fault that this machine does not meet, or "" if it meets all of them."""
    if name in ("disk full", "read-only") and os.geteuid() != 0:
        return "root, to mount a file system"
    if name == "PostgreSQL killed" and programs() is None:
        return "postgresql"
    return ""


def left_out() -> dict[str, str]:
    """Return the faults that cannot be injected on this machine, with the reason for each fault."""
    return {name: lacks for name in FAULTS if (lacks := _missing(name))}


def close_servers() -> None:
    while _servers:
        _servers.pop().close()


def postgres_killed(trial: Trial) -> None:
    """Store the incidents in PostgreSQL, which crashes at a random moment and restarts."""
    server = postgres()
    _using.acquire()
    trial.closing.append(_using.release)
    url = server.new_database()
    trial.environ["STALLWATCH_ALERTS_INCIDENTS_URL"] = url
    up = threading.Event()
    up.set()

    def heal() -> None:
        if not up.is_set():
            with contextlib.suppress(RuntimeError):
                server.start()
        up.set()

    def crash() -> None:
        up.clear()
        server.stop()
        time.sleep(away)
        if not up.is_set():
            server.start()
            up.set()

    away = trial.random.uniform(0.2, 2.0)
    if trial.random.random() < 0.3:
        trial.detail("away at the start")
        up.clear()
        server.stop()
        trial.at(trial.moment, heal)
    else:
        trial.detail(f"away for {away:.1f} s")
        trial.at(trial.moment, crash)
    trial.closing.append(heal)


# ---- logs


def _log(trial: Trial) -> Path:
    if trial.scenario == "hang":  # in a followed log, a hang looks like a finished run
        trial.scenario = trial.result.scenario = "crash"
    trial.log = trial.folder / "train.log"
    return trial.log


def log_rotated(trial: Trial) -> None:
    """Rename the log at a random moment. The training then opens a new file.

    The log is renamed only once, because a file that is created and renamed between two polls is never read.
    """
    log = _log(trial)
    part = log.with_name("train.log.1")
    trial.parts = [part]
    trial.at(trial.random.uniform(0.0, 1.2), lambda: log.rename(part) if log.exists() else None)


def log_truncated(trial: Trial) -> None:
    """Copy the log and truncate it while the training prints steps, as logrotate's ``copytruncate`` does."""
    log = _log(trial)
    trial.parts = None

    def cut() -> None:
        shutil.copy(log, log.with_name("train.log.1"))
        os.truncate(log, 0)

    trial.at(trial.random.uniform(0.0, 0.5), cut)


def two_agents(trial: Trial) -> None:
    """Have two agents with the same state folder watch the same log."""
    _log(trial)
    trial.names = ["trial", "second"]


# ---- the servers


class Relay:
    """``stallwatch relay``, and a simulated Alertmanager that sends alerts until the relay accepts them."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.ended = False
        self.start()

    def start(self) -> None:
        with self._lock:
            if self.ended or (self._process is not None and self._process.poll() is None):
                return
            command = self._trial.command("relay", "--port", str(self._port))
            with (self._trial.folder / "relay").open("ab") as out:
                self._process = subprocess.Popen(
                    command, cwd=self._trial.folder, env=self._trial.environ, stdout=out, stderr=out
                )
        if not self._port:
            end = time.monotonic() + 60
            while time.monotonic() < end and not self._port:
                time.sleep(0.05)
                output = (self._trial.folder / "relay").read_text()
                found = re.search(r"can post to http://[^ ]*:(\d+)/", output)
                self._port = int(found[1]) if found else 0

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def close(self) -> None:
        self.ended = True
        self.kill()

    def post(self, number: int, status: str) -> None:
        """Post an alert repeatedly until the relay accepts it."""
        alert = {
            "status": status,
            "labels": {"alertname": "StallwatchLogFlood", "run": f"other{number}", "severity": "critical"},
            "annotations": {"summary": "A flood."},
            "startsAt": "2026-11-21T07:12:13Z",
            "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else "2026-11-21T07:13:14Z",
            "generatorURL": "http://127.0.0.1:9/graph",
            "fingerprint": f"{number:016x}",
        }
        body = {
            "version": "4",
            "groupKey": "{}",
            "truncatedAlerts": 0,
            "status": status,
            "receiver": "stallwatch-relay",
            "groupLabels": {},
            "commonLabels": {},
            "commonAnnotations": {},
            "externalURL": "http://127.0.0.1:9",
            "alerts": [alert],
        }
        end = time.monotonic() + 60
        while time.monotonic() < end and not self.ended:
            with contextlib.suppress(OSError):
                request = urllib.request.Request(
                    f"http://127.0.0.1:{self._port}/alertmanager", data=json.dumps(body).encode()
                )
                with urllib.request.urlopen(request, timeout=10):
                    return
            time.sleep(0.1)


def relay_killed(trial: Trial) -> None:
    """Kill and restart the relay once or twice while a simulated Alertmanager posts alerts to it."""
    relay = Relay(trial)
    trial.closing.append(relay.close)
    for _ in range(trial.random.choice((1, 2))):
        moment = trial.random.uniform(0.0, 3.0)
        trial.at(moment, relay.kill)
        trial.at(moment + trial.random.uniform(0.05, 1.0), relay.start)
    moments = [trial.random.uniform(0.0, 2.0) for _ in range(3)]
    names = [f"alert/{number:016x}/2026-11-21T07:12:13Z" for number in range(3)]
    wanted = {f"{name}/{status}" for name in names for status in ("open", "resolved")}

    def send(number: int) -> None:
        relay.post(number, "firing")
        relay.post(number, "resolved")

    for number, moment in enumerate(moments):
        trial.at(moment, lambda number=number: send(number))

    def arrived() -> None:
        trial.join()
        relay.kill()
        relay.start()

        def received() -> Counter[str]:
            return Counter(f"{name}/{status}" for name, status in stages(trial.chat.taken))

        end = time.monotonic() + 40
        while not wanted <= received().keys() and time.monotonic() < end:
            time.sleep(0.1)
        trial.expect(sorted(wanted), received())

    trial.after.append(arrived)


def dashboard_killed(trial: Trial) -> None:
    """Kill the dashboard at a random moment while it reads the state folder, and then restart it."""
    processes: list[subprocess.Popen[bytes]] = []
    port = free_port()

    def start() -> None:
        with (trial.folder / "dashboard").open("ab") as output:
            command = trial.command("dashboard", "--port", str(port))
            processes.append(
                subprocess.Popen(
                    command,
                    cwd=trial.folder,
                    env=trial.environ,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(processes[-1].pid, signal.SIGKILL)
        processes[-1].wait()

    start()
    trial.closing.append(kill)
    _answers_at(port)
    moment = trial.moment
    trial.at(moment, kill)
    trial.at(moment + trial.random.uniform(0.1, 1.0), start)

    def whole() -> None:
        trial.join()
        if not _answers_at(port):
            trial.problems.append("the dashboard did not respond after the restart")
        for path in trial.home.glob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                found = connection.execute("PRAGMA integrity_check").fetchone()[0]
            if found != "ok":
                trial.problems.append(f"{path.name}: {found}")

    trial.after.append(whole)


def _answers_at(port: int) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        address = f"http://127.0.0.1:{port}/_stcore/health"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=10):
            return True
        time.sleep(0.2)
    return False


def _call(*command: str, **options: object) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip()}")


#: Faults by name, with the function and the number of trials in one cycle.
FAULTS: dict[str, tuple[Callable[[Trial], None], int]] = {
    "none": (nothing, 1),
    "agent SIGKILL": (agent_killed, 5),
    "agent SIGTERM": (agent_terminated, 2),
    "agent SIGSTOP": (agent_stopped, 2),
    "disk full": (disk_full, 5),
    "write errors": (write_errors, 6),
    "read-only": (read_only, 2),
    "clock steps": (clock_steps, 3),
    "descriptors": (descriptors, 3),
    "memory": (memory, 3),
    "port taken": (port_taken, 1),
    "chat down": (chat_down, 3),
    "chat 429": (_answers("429"), 1),
    "chat 500": (_answers("500"), 1),
    "chat slow": (_answers("slow"), 1),
    "chat malformed": (_answers("malformed", "garbage", "empty"), 1),
    "chat reset": (_answers("reset"), 1),
    "chat takes, breaks": (chat_takes_and_breaks, 2),
    "SQLite locked": (sqlite_locked, 2),
    "PostgreSQL killed": (postgres_killed, 2),
    "relay killed": (relay_killed, 3),
    "dashboard killed": (dashboard_killed, 1),
    "log renamed": (log_rotated, 2),
    "log truncated": (log_truncated, 2),
    "two agents": (two_agents, 1),
}
