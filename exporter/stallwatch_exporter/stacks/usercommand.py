"""A command of the user's own: run with the incident at hand, in a session of its own, its output kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from stallwatch_exporter.incident import Incident
from stallwatch_rules.text.redact import redact

COMMAND_SECONDS = 300.0  #: it is ended after this long
OUTPUT_BYTES = 64 * 1024  #: of its output the last so many are kept
_REST_SECONDS = 2.0  # for what was killed to be gone, and for the last of the output to be read


def run_line(
    line: str,
    incident: Incident,
    environ: Mapping[str, str],
    notice: Callable[[str], None],
    *,
    folder: str = "",
    patience: float = COMMAND_SECONDS,
) -> None:
    """Run it through the shell, with the incident as JSON on its standard input.

    What it prints is kept in `folder`, if one is given; one notice says how it ended and where that is.
    """
    begin, when = time.monotonic(), time.time()
    try:
        status, kept = _run(line, msgspec.json.encode(incident), environ, patience)
    except OSError as error:
        notice(f"the on_stall command cannot be run: {error.strerror or error}")
        return
    took = f"{time.monotonic() - begin:.1f} s"
    how = (
        f"was ended after {patience:.0f} s" if status is None else f"exited with {status} after {took}"
    ) + _last_line(kept if status else b"")
    notice(f"the on_stall command {how}{_keep(kept, folder, when)}")


def _run(line: str, told: bytes, environ: Mapping[str, str], patience: float) -> tuple[int | None, bytes]:
    """Its exit status and output; ``None`` where it took too long and was killed with all of its group."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environ},
        start_new_session=True,  # Ctrl-C is for the training, and the group can be ended as one
    )
    assert process.stdin is not None and process.stdout is not None
    output = _Output(process.stdout)
    # Threads that may outlive the command: what it leaves in the background may hold on to the pipes.
    reader = threading.Thread(target=output.read, daemon=True)
    reader.start()
    threading.Thread(target=_tell, args=(process.stdin, told), daemon=True).start()
    status: int | None = None
    try:
        status = process.wait(patience)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REST_SECONDS)
    reader.join(_REST_SECONDS)
    return status, output.kept()


def _tell(pipe: IO[bytes], told: bytes) -> None:
    with contextlib.suppress(OSError), pipe:  # it need not read it
        pipe.write(told)


class _Output:
    """Reads a pipe to its end and keeps the last of it, in bounded memory."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._state = (b"", 0)  # the last bytes, and how many came: one object, for two threads

    def read(self) -> None:
        """Until the last process that holds the pipe is gone."""
        with contextlib.suppress(OSError), self._pipe:
            while data := os.read(self._pipe.fileno(), OUTPUT_BYTES):
                last, size = self._state
                self._state = ((last + data)[-OUTPUT_BYTES:], size + len(data))

    def kept(self) -> bytes:
        """What was read until now, with a word on what is left out."""
        last, size = self._state
        if size == len(last):
            return last
        return f"[the first {size - len(last):,} bytes are left out]\n".encode() + last


def _last_line(kept: bytes) -> str:
    last = kept.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f": {redact(last[0])[:300]}" if last else ""


def _keep(kept: bytes, folder: str, when: float) -> str:
    """Write it down; in words, where that is."""
    if not kept:
        return " (it printed nothing)"
    if not folder:
        return ""
    path = Path(folder) / f"on-stall-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(when))}.txt"
    try:
        with path.open("ab") as file:  # two stalls of the same second are both kept
            file.write(kept)
    except OSError as error:
        return f" (its output cannot be kept: {error.strerror or error})"
    return f" (output: {path})"
