"""One trial in the fault matrix: a small training program under the real ``stallwatch``, with one fault."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fault_chat import Chat

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "machine"))

from optimizer import put_torch

from stallwatch_exporter.runs.runfolder import agent_alive, list_runs
from stallwatch_exporter.watching.episodes import folded
from stallwatch_exporter.watching.incidents import read_journal

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "fault_programs"
HOOK = PROGRAMS / "hook"
TRAINING = PROGRAMS / "training.py"
FLOOR = 0.1  #: smallest threshold in seconds; a stall is reported after 20 times this value
STALL = 2.0
LINGERING = 3.5  #: seconds from the error to the end of a "lingering-crash" (``fault_programs/training.py``)
PATIENCE = 90.0  #: seconds to wait for the end of a process
#: Expected messages about an incident in each scenario, in order, as pairs of status and outcome.
SCENARIOS: dict[str, tuple[tuple[str, str | None], ...]] = {
    "finish": (),
    "crash": (("resolved", "crashed"),),
    "lingering-crash": (("open", None), ("resolved", "crashed")),
    "hang": (("open", None), ("resolved", "recovered")),
}
SECONDS = {"finish": 1.2, "crash": 1.2, "lingering-crash": 4.8, "hang": 6.2}  #: duration in seconds
_STATED = re.compile(
    r"could not|cannot|failed|error occurred|kept on disk|continues|without|not ready|lost|left out|skipped"
    r"|did not|neither"
)
_OURS = re.compile(r'File "[^"]*/(stallwatch|stallwatch_\w+)/')


@dataclass
class Result:
    """The outcome of one trial, which is one line in the file that ``--resume`` names."""

    trial: int
    seed: int
    fault: str
    scenario: str
    detail: str = ""
    untouched: bool = True
    exit_kept: bool = True
    expected: int = 0
    once: int = 0
    twice: int = 0
    missing: int = 0
    stated: int = 0  #: number of missing messages whose loss Stallwatch reported
    in_order: bool = True
    silent: int = 0
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Reference:
    """The output and the exit code of the same training when it runs without a watcher."""

    stdout: bytes
    stderr: list[str]
    code: int


@cache
def log_reference(scenario: str) -> str:
    """Return the log that the training writes if it prints to a file instead of stdout."""
    with tempfile.TemporaryDirectory(prefix="stallwatch-faults-") as folder:
        command = [sys.executable, str(TRAINING), scenario, f"{folder}/note", f"{folder}/log"]
        subprocess.run(command, check=False, cwd=folder)
        return Path(folder, "log").read_text()


@cache
def reference(scenario: str) -> Reference:
    """Run the training once without a watcher and return its output and its exit code."""
    with tempfile.TemporaryDirectory(prefix="stallwatch-faults-") as folder:
        done = subprocess.run(
            [sys.executable, str(TRAINING), scenario, f"{folder}/note"],
            capture_output=True,
            check=False,
            cwd=folder,
        )
    return Reference(done.stdout, done.stderr.decode().splitlines(), done.returncode)


class Trial:
    """A run in its own folder. A fault can change the run before it starts and while it runs."""

    def __init__(self, number: int, seed: int, fault: str, index: int, scenario: str | None = None) -> None:
        self.random = random.Random(f"{seed}/{number}/{fault}")
        self.index = index  #: number of earlier trials with this fault
        drawn = self.random.choices(list(SCENARIOS), weights=(15, 50, 17, 18))[0]
        self.scenario = scenario or drawn
        self.result = Result(number, seed, fault, self.scenario)
        self.folder = Path(tempfile.mkdtemp(prefix="stallwatch-faults-"))
        self.home = self.folder / "home"
        self.chat = Chat()
        self.options: list[str] = []
        self.rings = self.random.random() < 0.4
        self.killed = False  #: True if the agent was killed
        self.restart_needed = False  #: True if only the next run sends waiting messages
        self.may_lose = False  #: True if messages can be lost, provided that Stallwatch reports the loss
        self.stopped_by: int | None = None  #: signal that reached both the agent and the training
        self.asleep = (math.inf, math.inf)  #: Unix times at which the agent was stopped and resumed
        self.problems: list[str] = []
        self.log: Path | None = None  #: log of the training, which ``stallwatch tail`` follows
        self.parts: list[Path] | None = []  #: files with older lines; ``None`` if these lines were truncated
        self.names = ["trial"]  #: names of the runs that watch the training
        self.after: list[Callable[[], None]] = []  #: actions and checks that follow the end of all faults
        self.closing: list[Callable[[], None]] = []
        self.healing: list[Callable[[], None]] = []  #: actions that end the faults
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")},
            "STALLWATCH_HOME": str(self.home),
            "STALLWATCH_CACHE": str(Path(tempfile.gettempdir()) / f"stallwatch-faults-cache-{os.getuid()}"),
            "STALLWATCH_ALERTS_URLS": self.chat.url,
            "STALLWATCH_STALL_FLOOR_SECONDS": str(FLOOR),
            "STALLWATCH_STALL_START_SECONDS": "30",
            "STALLWATCH_EXPORTER_LINGER_SECONDS": "0",
            "PYTHONUNBUFFERED": "1",
        }
        self.agent_environ: dict[str, str] = {}
        self.stdout, self.stderr = self.folder / "stdout", self.folder / "stderr"
        self.note = self.folder / "note"
        self.agent: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    # ---- methods that faults use

    @property
    def moment(self) -> float:
        """Return a random time, in seconds after the start. The training might end before this time."""
        return self.random.uniform(0.0, SECONDS[self.scenario] + 1.6)

    def detail(self, text: str) -> None:
        self.result.detail = f"{self.result.detail}, {text}".strip(", ")

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Run the action `seconds` seconds after the start, unless the trial has ended."""

        def wait() -> None:
            if self._over.wait(seconds):
                return
            with contextlib.suppress(ProcessLookupError):
                action()

        self._threads.append(threading.Thread(target=wait, daemon=True))

    def beside(self, work: Callable[[], None]) -> None:
        """Run the function in a thread that starts with the trial."""
        self._threads.append(threading.Thread(target=work, daemon=True))

    def join(self) -> None:
        """Wait until all scheduled actions have finished."""
        for thread in self._threads:
            thread.join(PATIENCE)

    def expect(self, wanted: list[str], seen: dict[str, int]) -> None:
        """Check and count the messages that do not come from the training's agent."""
        self.result.expected += len(wanted)
        self.result.once += sum(seen[item] == 1 for item in wanted)
        self.result.twice += sum(seen[item] == 2 for item in wanted)
        lost = [item for item in wanted if not seen[item]]
        self.result.missing += len(lost)
        self.result.silent += len(lost)
        self.problems += [f"missing without a report: {item}" for item in lost]
        self.problems += [f"{item} was sent {seen[item]} times" for item in wanted if seen[item] > 2]

    def hook(self, name: str, value: str) -> None:
        """Set a variable that injects a fault into the agent's process. See ``fault_programs/hook``."""
        self.agent_environ |= {name: value, "PYTHONPATH": self.hooked_path()}

    def hooked_path(self) -> str:
        """Return Python's module path, including the folder of the hook."""
        return f"{HOOK}{os.pathsep}{self.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)

    def kill(self, number: signal.Signals) -> bool:
        """Send a signal to the agent. Return True if the agent was running."""
        if self.agent is None or self.agent.poll() is not None:
            return False
        if number == signal.SIGKILL:
            self.killed = self.restart_needed = True
        if number == signal.SIGTERM:
            self.stopped_by = number
        self.agent.send_signal(number)
        return True

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "stallwatch", *arguments]

    # ---- the run

    def run(self, prepare: Callable[[Trial], None]) -> Result:
        """Run the trial, check the outcome, and clean up."""
        started = time.monotonic()
        try:
            if self.rings:
                put_torch(self.folder)
                path = self.environ.get("PYTHONPATH", "")
                self.environ |= {
                    "PYTHONPATH": f"{path}{os.pathsep}{self.folder}",
                    "RANK": "0",
                    "FAULTS_RINGS": "1",
                }
            prepare(self)
            if self.log is None:
                self.watch()
            else:
                self.follow()
            self._end_fault()
            self._recover()
            for work in self.after:
                work()
            self.check()
        except Exception as error:
            self.result.broken.append(f"the trial failed: {type(error).__name__}: {error}")
        finally:
            self._over.set()
            self._end_fault()
            for close in reversed(self.closing):
                with contextlib.suppress(Exception):
                    close()
            if self.agent is not None and self.agent.poll() is None:
                self.agent.kill()
        self.result.seconds = round(time.monotonic() - started, 1)
        self.result.broken += self.problems
        self.discard(keep=bool(self.result.broken and os.environ.get("FAULTS_KEEP")))
        return self.result

    def discard(self, *, keep: bool = False) -> None:
        """Remove the trial's folder or, if `keep` is true, store the result and the chat's messages in it."""
        self.chat.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            (self.folder / "result.json").write_text(json.dumps(asdict(self.result), indent=1))
            (self.folder / "chat.json").write_text(json.dumps(self.chat.taken, indent=1))

    def follow(self) -> None:
        """Start the training when ``stallwatch tail`` is ready, and wait until both have ended."""
        assert self.log is not None
        self.log.touch()
        self.environ |= {"STALLWATCH_STALL_FLOOR_SECONDS": "1"}
        agents = []
        for name in self.names:
            command = self.command("tail", "--port", "0", "--name", name, "--until-idle", "5", str(self.log))
            with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
                agents.append(self._started(command, out, err))
        deadline = time.monotonic() + PATIENCE
        while self.stderr.read_text().count("as history") < len(agents) and time.monotonic() < deadline:
            time.sleep(0.05)
        for thread in self._threads:
            thread.start()
        train = [sys.executable, str(TRAINING), self.scenario, str(self.note), str(self.log)]
        training = self._started(train, subprocess.DEVNULL, subprocess.DEVNULL)
        self.code = self._waited(training, "the training did not end")
        self.join()
        for agent in agents:
            if self._waited(agent, "stallwatch tail did not end") != 0:
                self.problems.append("stallwatch tail failed")

    def _started(self, command: list[str], out: Any, err: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environ | self.agent_environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def watch(self) -> None:
        """Run the training under ``stallwatch run`` and wait until both have ended."""
        train = [sys.executable, str(TRAINING), self.scenario, str(self.note)]
        command = self.command("run", "--port", "0", "--name", "trial", *self.options, "--", *train)
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.agent = self._started(command, out, err)
        for thread in self._threads:
            thread.start()
        self.code = self._waited(self.agent, "stallwatch run did not end")
        # glibc aborts if no memory is left.
        aborted = self.code == 127 and b"ABORT" in self.stderr.read_bytes()
        if aborted or (self.code in (-signal.SIGSEGV, -signal.SIGABRT) and self.result.fault == "memory"):
            self.killed = self.restart_needed = True
        if self.killed:
            self._wait_for_training()

    def _waited(self, process: subprocess.Popen[bytes], problem: str) -> int | None:
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.problems.append(f"{problem} within {PATIENCE:.0f} s")
            process.kill()
            return process.wait()

    def _wait_for_training(self) -> None:
        """Wait for the end of a training run whose agent was killed.

        The training continues without the agent, because another process forwards its output.
        """
        deadline = time.monotonic() + 3 * SECONDS[self.scenario] + 20
        started = self.stdout.stat().st_size > 0
        while time.monotonic() < deadline and not self.note.exists():
            started = started or self.stdout.stat().st_size > 0
            if not started and time.monotonic() > deadline - 3 * SECONDS[self.scenario] - 17:
                return  # the agent was killed before the training began
            time.sleep(0.02)
        deadline = time.monotonic() + 5
        known = reference(self.scenario).stdout
        while time.monotonic() < deadline and self.stdout.read_bytes() != known:
            time.sleep(0.02)

    def _end_fault(self) -> None:
        while self.healing:
            with contextlib.suppress(Exception):
                self.healing.pop()()

    def _recover(self) -> None:
        """Start another run on this host. This run sends waiting messages and closes incidents."""
        waits = b"kept on disk" in self.stderr.read_bytes()
        if not (self.restart_needed or waits):
            return
        # Make the records look older than a minute, so the next run treats the agent as gone.
        for record in self.home.glob("runs/*/agent.json"):
            info = json.loads(record.read_bytes())
            record.write_text(json.dumps(info | {"updated_at": info["updated_at"] - 120.0}))
        for block in self.home.glob("runs/*/record.json"):  # the run's end is stored in this file first
            with contextlib.suppress(ValueError):  # the file is still empty
                kept = json.loads(block.read_bytes().strip(b"\0 \n"))
                kept["info"]["updated_at"] -= 120.0
                block.write_text(json.dumps(kept))
        output = self.folder / "next"
        for _ in range(3):  # on a busy machine, the imports of one process can take more than ten seconds
            with output.open("wb") as out:
                done = subprocess.Popen(
                    self.command("run", "--no-metrics", "--no-probe", "--name", "next", "--", "true"),
                    cwd=self.folder,
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            code = self._waited(done, "the next stallwatch run did not end")
            if code:
                end = output.read_text(errors="replace").strip().rpartition("\n")[2]
                self.problems.append(f"the next stallwatch run ended with {code}: {end}")
            if b"kept on disk" not in output.read_bytes():
                break

    # ---- checks of the outcome

    def check(self) -> None:
        """Compare the output with the reference and compare the messages with the expected messages."""
        self._check_training()
        self._check_messages()
        if match := _OURS.search(self.stderr.read_text(errors="replace")):
            self.problems.append(f"stallwatch printed a traceback ({match[1]})")

    def _check_log(self) -> None:
        assert self.log is not None
        expected, code = log_reference(self.scenario), reference(self.scenario).code
        if self.parts is not None:
            printed = "".join(part.read_text() for part in [*self.parts, self.log] if part.exists())
            self.result.untouched = printed == expected
        self.result.exit_kept = self.code == code
        if not self.result.untouched or not self.result.exit_kept:
            self.problems.append(f"the training changed: exit code {self.code} instead of {code}")

    def _check_training(self) -> None:
        if self.log is not None:
            self._check_log()
            return
        bare = reference(self.scenario)
        printed, output = self.stdout.read_bytes(), self.stderr.read_text(errors="replace").splitlines()
        code = self.code
        ended = self.note.exists()
        if self.killed:
            if not ended and not printed and not output:
                return  # the agent was killed before the command started
            code = int(self.note.read_text().split()[1]) if ended else None
        if self._was_stopped:
            untouched = bare.stdout.startswith(printed)
            # SIGTERM ends stallwatch itself if the signal arrives before the handler is installed
            kept = code in (128 + self.stopped_by, -self.stopped_by)
        else:
            untouched = printed == bare.stdout and _is_within(bare.stderr, output)
            kept = code == bare.code
        if not untouched:
            self.problems.append(f"output changed: {len(printed)} bytes instead of {len(bare.stdout)}")
        if not kept:
            self.problems.append(f"exit code {code} instead of {bare.code}")
        self.result.untouched, self.result.exit_kept = untouched, kept

    def _check_messages(self) -> None:
        messages = [body for body in self.chat.taken if body.get("kind") != "test"]
        self._check_order(messages)
        for name in self.names:
            mine = [
                body for body in messages if any(item.startswith(f"{name}/") for item, _ in stages([body]))
            ]
            self._check_run(name, mine)

    def _check_run(self, name: str, trial: list[dict[str, Any]]) -> None:
        self._count(name, trial)
        expected = SCENARIOS[self.scenario]
        if self.log is not None:  # a log contains no exit codes
            expected = (("open", None),) if expected else ()
        quiet = float(self.note.read_text().split()[0]) if self.note.exists() else 0.0
        if not expected and quiet < 0.8 * STALL and self.stopped_by is None:
            self.problems += [f"false alarm: {body['title']}" for body in trial]
        if self.scenario == "lingering-crash" and self._awake_before_the_end() < STALL + 1.0:
            expected = tuple(stage for stage in expected if stage[0] != "open")
        self.result.expected += len(expected)
        lost = [stage for stage in expected if not any(_is_stage(body, stage) for body in trial)]
        if lost:
            self._judge_losses(lost, trial)

    @property
    def _was_stopped(self) -> bool:
        """Return True if the signal ended the training. The training might have written its note earlier."""
        number = self.stopped_by
        return number is not None and (not self.note.exists() or self.code == 128 + number)

    def _awake_before_the_end(self) -> float:
        """Return the number of seconds during which the agent ran and the training printed nothing."""
        if not self.note.exists():
            return math.inf
        end = self.note.stat().st_mtime
        begin, (slept, woke) = end - LINGERING, self.asleep
        return LINGERING - max(0.0, min(end, woke) - max(begin, slept))

    def _count(self, run: str, bodies: list[dict[str, Any]]) -> None:
        # A warning that becomes critical causes one more message.
        found = stages([body for body in bodies if body["severity"] == "critical"])
        seen = Counter(stage for stage in found if stage[0].startswith(f"{run}/"))
        self.result.once += sum(count == 1 for count in seen.values())
        self.result.twice += sum(count == 2 for count in seen.values())
        for key, count in seen.items():
            if count > 2:
                self.problems.append(f"{' '.join(key)} was sent {count} times")

    def _check_order(self, bodies: list[dict[str, Any]]) -> None:
        closed: set[str] = set()
        opened: set[str] = set()
        for name, status in stages(bodies):
            if status == "open" and name in closed and name not in opened:
                self.result.in_order = False
                self.problems.append(f"{name} opened after it closed")
            (opened if status == "open" else closed).add(name)

    def _judge_losses(self, lost: list[Any], trial: list[dict[str, Any]]) -> None:
        """Count each missing message as a reported loss or as a silent loss.

        A loss is reported if the output of Stallwatch states that messages were lost.
        """
        if self._was_stopped:
            self.result.expected -= len(lost)  # the training ended before these events
            return
        output = self.stderr.read_text(errors="replace") + _read(self.folder / "next")
        if self.killed:
            known = {item.id: item for item in self._recorded()}
            received = {name for name, _ in stages(trial)}
            unheard = set(known) - received
            unended = [
                info for info in list_runs(self.home) if info.ended_at is None and not agent_alive(info)
            ]
            self.result.expected -= 0 if unheard else len(lost)
            if not unheard:  # the agent never saw the missing events, and the run is shown without an agent
                begun = any(self.home.glob("runs/trial*"))
                if begun and not unended and not known:
                    self._lose(len(lost), "the agent of the run was killed, and no record shows this")
                return
            self._lose(len(unheard), f"the chat never received {', '.join(sorted(unheard))} from the record")
            return
        stated = any(_STATED.search(line) for line in output.splitlines() if line.startswith("stallwatch: "))
        self.result.missing += len(lost)
        if stated:
            self.result.stated += len(lost)
        else:
            self.result.silent += len(lost)
        if not stated or not self.may_lose:
            names = ", ".join("/".join(filter(None, stage)) for stage in lost)
            self.problems.append(f"missing{'' if stated else ' without a report'}: {names}")

    def _lose(self, count: int, why: str) -> None:
        self.result.missing += count
        self.result.silent += count
        self.problems.append(f"lost without a report: {why}")

    def _recorded(self) -> list[Any]:
        """Return the incidents that the agent recorded, except those that have severity "info"."""
        found = []
        for folder in self.home.glob("runs/trial*"):
            found += [item for item in folded(read_journal(folder)) if item.severity != "info"]
        return found


def stages(bodies: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the pairs of incident and status from all messages. One message can contain several pairs."""
    found: list[tuple[str, str]] = []
    for body in bodies:
        names = str(body.get("incidents") or body["id"]).split(",")
        found += zip(names, str(body.get("statuses") or body["status"]).split(","), strict=True)
    return found


def _is_stage(body: dict[str, Any], stage: tuple[str, str | None]) -> bool:
    """Return True if the message reports this stage of the incident."""
    return bool(body.get("incidents")) or (body["status"], body.get("outcome")) == stage


def _is_within(lines: list[str], others: list[str]) -> bool:
    """Return True if `lines` is a subsequence of `others`."""
    rest = iter(others)
    return all(line in rest for line in lines)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
