"""React to a stall: take snapshots of the ranks before the report, and then run ``[stall] on_stall``."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import msgspec
import psutil

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.private import usual_umask
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.stacks.evidence import Evidence
from stallwatch_exporter.stacks.gathering import wait_for
from stallwatch_exporter.stacks.local_ranks import is_alone, is_launching
from stallwatch_exporter.stacks.processes import family
from stallwatch_rules.endings import Ending, signal_name
from stallwatch_rules.locale import rendered
from stallwatch_rules.messages import message, sentences
from stallwatch_rules.text.redact import redact

COMMAND_SECONDS = 300.0  #: seconds after which the user's command is killed
OUTPUT_BYTES = 64 * 1024  #: number of bytes kept from the end of the command's output
_REST_SECONDS = 2.0  # seconds to wait until a killed process has ended and its last output is read


def run_line(
    line: str,
    incident: Incident,
    environ: Mapping[str, str],
    notice: Callable[[str], None],
    *,
    folder: str = "",
    language: str = "en",
    patience: float = COMMAND_SECONDS,
) -> None:
    """Run a shell command and pass it the incident on standard input as JSON in `language`.

    If `folder` is not empty, the output is stored in this folder. A notice reports the exit status and the
    path of the output file.
    """
    begin, when = time.monotonic(), time.time()
    try:
        status, kept = _run(line, msgspec.json.encode(rendered(incident, language)), environ, patience)
    except OSError as error:
        notice(f"the on_stall command cannot be run: {error.strerror or error}")
        return
    text = redact(kept.decode("utf-8", "replace"))
    if status is None:
        how = f"was killed after {patience:.0f} s"
    elif status < 0:
        by = signal_name(status) or f"signal {-status}"
        how = f"was ended by {by} after {time.monotonic() - begin:.1f} s"
    else:
        how = f"exited with code {status} after {time.monotonic() - begin:.1f} s"
    if status and text.strip():
        how += f": {text.strip().splitlines()[-1][:300]}"
    notice(f"the on_stall command {how}{_keep(text, folder, when)}")


def _run(line: str, incident: bytes, environ: Mapping[str, str], patience: float) -> tuple[int | None, bytes]:
    """Run a shell command and return its exit status and output.

    After `patience` seconds, the command's process group is killed, and the status is ``None``.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environ},
        umask=usual_umask(),
        start_new_session=True,  # Control+C does not reach the command, and its process group can be killed
    )
    assert process.stdin is not None and process.stdout is not None
    output = _Output(process.stdout)
    # The threads can outlive the command because its child processes can keep the pipes open.
    reader = threading.Thread(target=output.read, daemon=True)
    reader.start()
    threading.Thread(target=_write, args=(process.stdin, incident), daemon=True).start()
    status: int | None = None
    try:
        status = process.wait(patience)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            # The process has not been reaped, so its ID is still valid.
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REST_SECONDS)
    reader.join(_REST_SECONDS)
    return status, output.kept()


def _write(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError), pipe:  # the command does not have to read its input
        pipe.write(data)


class _Output:
    """Reader of a pipe, which keeps only the end of the output to limit the memory use."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._state = (b"", 0)  # last bytes and total size, in one tuple because two threads use both

    def read(self) -> None:
        """Read until no process has the pipe open for writing."""
        with contextlib.suppress(OSError), self._pipe:
            while data := os.read(self._pipe.fileno(), OUTPUT_BYTES):
                last, size = self._state
                self._state = ((last + data)[-OUTPUT_BYTES:], size + len(data))

    def kept(self) -> bytes:
        """Return the output that was read. If the beginning is omitted, add a note."""
        last, size = self._state
        if size == len(last):
            return last
        return f"[the first {size - len(last):,} bytes are omitted]\n".encode() + last


def _keep(kept: str, folder: str, when: float) -> str:
    """Write the output to a file, and return the end of the notice, which contains the path of the file."""
    if not kept:
        return " (it printed nothing)"
    if not folder:
        return ""
    path = Path(folder) / f"on-stall-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(when))}.txt"
    try:
        # Append because two stalls can occur in the same second.
        with path.open("a", encoding="utf-8") as file:
            file.write(kept)
    except OSError as error:
        return f" (its output cannot be saved: {error.strerror or error})"
    return f" (output: {path})"


ABORT, COMMAND = "abort", "command "
GRACE_SECONDS = 30.0  #: Seconds between SIGTERM and SIGKILL. torchrun waits equally long for its ranks.
#: Seconds before a query about a process is abandoned. Most queries take milliseconds.
LOOK_PATIENCE_SECONDS = 5.0
_Answer = TypeVar("_Answer")


def abort(command: int, grace: float, *, patience: float = LOOK_PATIENCE_SECONDS) -> None:
    """Send SIGTERM to the command, which ends its ranks. After `grace` seconds, kill the remaining processes.

    A query about a process that is stuck in the kernel might never return, so each query ends after
    `patience` seconds. If there is no result, only the command is killed because its descendants are unknown.
    """
    processes = _answer(lambda: family(command), patience)
    if processes is None:
        _signal(command, signal.SIGTERM)
        # Stop when the ID becomes free, because a different process can get the ID after the parent has
        # reaped this process.
        if wait_for([command], lambda pid: not _signal(pid, 0), grace):
            _signal(command, signal.SIGKILL)
        return
    if not processes:
        return  # the command has ended by itself
    _signal(command, signal.SIGTERM)
    _answer(lambda: wait_for([processes], lambda them: not any(map(_runs, them)), grace), grace + patience)
    # A stopped rank cannot handle SIGTERM, so send SIGKILL. Use one thread for each process because a query
    # might never return.
    killing = [threading.Thread(target=_kill, args=(process,), daemon=True) for process in processes]
    for each in killing:
        each.start()
    end = time.monotonic() + patience
    for each in killing:
        each.join(max(0.0, end - time.monotonic()))


def _answer(query: Callable[[], _Answer], patience: float) -> _Answer | None:
    """Return the result of `query`. If it takes too long, abandon its thread and return ``None``."""
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(query()), daemon=True).start()
    try:
        return answers.get(timeout=patience)
    except queue.Empty:
        return None


def _signal(pid: int, number: int) -> bool:
    """Send a signal to a process (signal 0 only checks the process). Return whether the process exists."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)
        return True
    return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error, OSError):
        process.kill()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def variables(incident: Incident, command: int | None, folder: str) -> dict[str, str]:
    """Return the environment variables for the user's command. Variables for unknown facts are empty."""
    stacks = incident.stacks
    facts = {
        "RUN": incident.run,
        "INCIDENT": incident.id,
        "RULE": incident.rule,
        "PHASE": incident.phase,
        "STEP": incident.step,
        "STALLED_SECONDS": incident.stalled_seconds,
        "RANKS": ",".join(str(rank) for rank in stacks.odd) if stacks is not None else "",
        "STACKS": f"{Path(folder, stacks.file)}" if stacks is not None and stacks.file and folder else "",
        "RUN_FOLDER": folder,
        "COMMAND_PID": command,
    }
    return {f"STALLWATCH_{name}": "" if value is None else str(value) for name, value in facts.items()}


class Response:
    """Reaction to stalls: `evidence` takes snapshots of the ranks, and `react` applies the `policy`."""

    def __init__(
        self,
        folder: RunFolder,
        policy: str,
        probing: Probing | None,
        notice: Callable[[str], None],
        language: str = "en",
    ) -> None:
        self.aborted = False  #: true if the agent ended the command
        self._policy = policy
        self._language = language
        self._notice = notice
        self._path = folder.path if folder.problem is None else None
        self._rings = probing.folder if probing is not None else None
        self.evidence = Evidence(self._rings, self._path, folder.run, notice)
        self._explained = False

    def watch(self, command: int) -> None:
        """Set the process ID of the command, whose descendants can be ranks."""
        self.evidence.command = command

    def alone(self) -> bool:
        """Return whether the command is a single Python program that does not belong to a larger job."""
        return is_alone(self._rings, self.evidence.command)

    def launching(self) -> bool:
        """Return whether the command is a launcher that has started no rank yet."""
        return is_launching(self._rings, self.evidence.command)

    def explain(self, unanswered: str) -> None:
        """If `unanswered` is not empty, report once why no rank could be queried during a stall."""
        if unanswered and not self._explained:
            self._explained = True
            self._notice(unanswered)

    def judged(self, ending: Ending) -> Ending:
        """Return the ending of the command. If the agent aborted the command, the ending records that."""
        if not self.aborted or ending.kind == "finished":
            return ending
        ended_by = ending.signal or "SIGTERM"  # a launcher that receives the signal exits with its own code
        detail = sentences(message("run.aborted"), ending.detail)
        return msgspec.structs.replace(ending, kind="killed", signal=ended_by, detail=detail)

    def react(self, incident: Incident) -> threading.Thread | None:
        """Start the policy's action for a stall. Return the thread of the action, or ``None``."""
        command, folder = self.evidence.command, str(self._path) if self._path else ""
        work: Callable[[], None]
        if self._policy.startswith(COMMAND):
            line = self._policy[len(COMMAND) :].strip()
            known = variables(incident, command, folder)
            work = partial(
                run_line, line, incident, known, self._notice, folder=folder, language=self._language
            )
        elif self._policy != ABORT:
            return None
        elif command is None:
            self._notice(
                "[stall] on_stall = abort has no effect here; use stallwatch run, which can end its command"
            )
            return None
        else:
            grace = f"{GRACE_SECONDS:.0f} s"
            self._notice(
                f"the run is stalled; ending it because of [stall] on_stall = abort (grace period {grace})"
            )
            work = partial(abort, command, GRACE_SECONDS)
        thread = threading.Thread(target=work, name="stallwatch on_stall", daemon=True)
        thread.start()
        self.aborted = self.aborted or self._policy == ABORT
        return thread
