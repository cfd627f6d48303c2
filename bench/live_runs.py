"""Run one program of the live benchmark under the real ``stallwatch``, which uses a webhook as its chat."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
from cluster_messages import Receiver
from live_programs.table import CTRL_C, FORMS, Program
from live_scoring import LIMITS, LONGEST, Message, Observed
from machine import free_port

from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.json import schema_1_verdict

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "live_programs"
SETTLES = 6.0  #: seconds during which a second message about the same event can follow the first message
ENDS = 15.0  #: seconds between Control+C, SIGTERM, and SIGKILL
_LATER = 10.0  #: seconds after the limit during which a message counts as late instead of missed
_TICK = 0.2


def missing(program: Program) -> list[str]:
    """Return the packages that the program needs but that are not installed."""
    return [name for name in program.needs if importlib.util.find_spec(name) is None]


def beside(stallwatch: str) -> str:
    """Return the interpreter of the environment in which this ``stallwatch`` is installed."""
    python = Path(stallwatch).with_name("python")
    return str(python) if python.exists() else sys.executable


class Run:
    """A run of a program in its own folder."""

    def __init__(self, program: Program, seed: int, stallwatch: str) -> None:
        self.program, self._stallwatch = program, stallwatch
        self.folder = Path(tempfile.mkdtemp(prefix=f"stallwatch-bench-{program.name}-"))
        self._work = self.folder / "work"
        self._work.mkdir()
        self._events = self.folder / "event"
        self._chat = Receiver()
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")},
            "PATH": f"{Path(stallwatch).parent}:{os.environ['PATH']}",
            "STALLWATCH_HOME": str(self.folder / "home"),
            "STALLWATCH_ALERTS_URLS": self._chat.url,
            "STALLWATCH_BENCH_EVENT": str(self._events),
            "STALLWATCH_BENCH_SEED": str(seed),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "DS_ACCELERATOR": "cpu",
        }

    def observe(self) -> Observed:
        """Run the program until it ends or is reported. Return the messages and the final verdict."""
        started = time.time()
        processes = self._start()
        with self._chat:
            try:
                self._watch(processes)
            finally:
                stopped = time.time() if processes[-1].poll() is None else None
                self._end(processes)
        messages = [Message(at, body) for at, body in self._chat.messages]
        return Observed(started, self._event(), messages, *self._final(), self._threshold(), stopped)

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self) -> list[str]:
        program = f"{PROGRAMS / self.program.file} {self.program.scenario}".strip()
        form = FORMS[self.program.form]
        return shlex.split(form.format(python=beside(self._stallwatch), program=program, port=free_port()))

    def _start(self) -> list[subprocess.Popen[bytes]]:
        watched = ["run", "--port", "0", "--name", "bench"]
        if self.program.form == "no-probe":
            watched.append("--no-probe")
        if self.program.form != "tail":
            return [self._popen([self._stallwatch, *watched, "--", *self._command()], "terminal")]
        (self.folder / "train.log").touch()
        training = self._popen(self._command(), "train.log")
        tail = ["tail", "--port", "0", "--name", "bench", str(self.folder / "train.log")]
        return [self._popen([self._stallwatch, *tail], "terminal"), training]

    def _popen(self, command: list[str], output: str) -> subprocess.Popen[bytes]:
        with (self.folder / output).open("wb") as file:
            return subprocess.Popen(
                command,
                cwd=self._work,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _watch(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Wait until the program ends, until its hang is reported, or until a report would be too late."""
        expected, training = self.program.expected, processes[-1]
        hard = time.monotonic() + 2 * self.program.seconds + LONGEST
        sent = 0
        while training.poll() is None and time.monotonic() < hard:
            time.sleep(_TICK)
            event = self._event()
            if event is None:
                continue
            now = time.time()
            while sent < len(self.program.signals) and now >= event + self.program.signals[sent][0]:
                self._send(self.program.signals[sent][1], processes[0])
                sent += 1
            if expected is None or expected.recovers:
                continue
            after = [at for at, _ in list(self._chat.messages) if at >= event]
            if after and now > after[0] + SETTLES:
                return
            longest = max(LIMITS[expected.limit], min(self._threshold() or 0.0, LONGEST))
            if now > event + longest + _LATER:
                return
        if self.program.form == "tail":
            time.sleep(SETTLES)  # the agent reads the last lines

    def _end(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """End the program as its user would, first with Control+C, and kill any remaining processes."""
        families = [_family(process) for process in processes]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if all(process.poll() is not None for process in processes):
                break
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            until = time.monotonic() + ENDS
            while time.monotonic() < until and any(process.poll() is None for process in processes):
                time.sleep(_TICK)
        for left in (member for members in families for member in members):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()

    def _send(self, name: str, watcher: subprocess.Popen[bytes]) -> None:
        """Send a signal to the command and its descendants, as ``kill -STOP -- -PGID`` does.

        Stallwatch itself does not receive the signal.
        """
        if name == CTRL_C:
            os.killpg(watcher.pid, signal.SIGINT)
            return
        pids = [int(line.split()[3]) for line in self._events.read_text().splitlines()]
        above = psutil.Process(pids[0]).parent()
        group = [above, *above.children(recursive=True)] if above is not None else []
        for process in group:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.Signals[name])

    def _event(self) -> float | None:
        """Return the time of the first event, or ``None`` if no event has occurred."""
        with contextlib.suppress(OSError):
            found = re.search(r"^BENCH EVENT ([\d.]+)", self._events.read_text(), flags=re.MULTILINE)
            return float(found[1]) if found else None
        return None

    def _read(self, name: str) -> str:
        found = sorted((self.folder / "home" / "runs").glob(f"*/{name}"))
        return found[-1].read_text() if found else ""

    def _final(self) -> tuple[str, str]:
        """Return the verdict and the state at the end of the run."""
        found = self._read("diagnosis.json")
        verdict = schema_1_verdict(msgspec.json.decode(found, type=Diagnosis)) if found else ""
        agent: dict[str, Any] = json.loads(self._read("agent.json") or "{}")
        return verdict, (agent.get("ending") or {}).get("kind") or agent.get("state", "")

    def _threshold(self) -> float | None:
        """Return the longest stall threshold in the run's incidents, or ``None`` if there is no threshold."""
        allowed = [
            json.loads(line).get("threshold_seconds") for line in self._read("incidents.jsonl").splitlines()
        ]
        return max((item for item in allowed if item is not None), default=None)


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def quiet(cores: int, limit: float, given_up: Callable[[], bool]) -> float:
    """Wait until the machine has capacity for another program. Return the load per core."""
    while (load := os.getloadavg()[0] / cores) >= limit and not given_up():
        time.sleep(2)
    return load
