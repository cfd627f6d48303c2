"""Child processes of the demo: each leads a session of its own, and none outlives the demo."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import psutil

_MARK = "_STALLWATCH_DEMO"


class Children:
    """Starts processes and, on leaving the ``with`` block, ends them with all that they started.

    Descendants are known by a mark in their environment: torchrun's ranks have sessions of their own, and a
    process whose parent died is no longer in the tree.
    """

    def __init__(self, patience: float = 8.0) -> None:
        self._patience = patience
        self._token = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str], env: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start one. Ctrl-C in the terminal does not reach it: the demo decides when it ends."""
        child = subprocess.Popen(
            command,
            env={**env, _MARK: self._token},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
        self._started.append(child)
        return child

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _signals_held():
            self.end()

    def end(self) -> None:
        """Ask all politely, newest first; what is still there after a while is terminated, then killed."""
        for child in reversed(self._started):
            if child.poll() is None:
                # What a person would send: `stallwatch run` then ends its command and says how it ended.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGINT)
        family = self._family()
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            for process in family:
                if sign is not None:
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(sign)
            psutil.wait_procs(family, timeout=self._patience / 2)
            family = self._family()  # again: a dying process may have started another
            if not family:
                break
        for child in self._started:
            child.poll()

    def _family(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self._token and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """An impatient second Ctrl-C must not leave half of the children behind."""
    held = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
