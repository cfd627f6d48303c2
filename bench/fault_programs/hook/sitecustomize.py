"""Inject faults into a Python process: failed writes in a folder, resource limits, and a shifted clock.

``FAULTS_FAIL`` has the form ``n:errno:once|on:folder``, and ``FAULTS_LIMIT`` has the form
``nofile|as:number``. Child processes do not inherit these two variables. ``FAULTS_CLOCK`` names a file that
contains the shift of the wall clock in seconds, for all processes. (libfaketime is not used, because Python's
``time.sleep`` fails with EINVAL under libfaketime 0.9.10.)
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any


def _limit(kind: str, number: str) -> None:
    which = {"nofile": resource.RLIMIT_NOFILE, "as": resource.RLIMIT_AS}[kind]
    resource.setrlimit(which, (int(number), resource.getrlimit(which)[1]))


def _fail(number: str, code: str, mode: str, folder: str) -> None:
    counter, lock, target = itertools.count(1), threading.Lock(), int(number)
    wrong = getattr(errno, code)

    def count(path: object) -> None:
        try:
            shown = os.fspath(path)  # type: ignore[call-overload]
        except TypeError:
            return
        if not str(shown).startswith(folder):
            return
        with lock:
            now = next(counter)
        if now == target or (mode == "on" and now > target):
            raise OSError(wrong, os.strerror(wrong), shown)

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            count(self.name)
            return super().write(data)

    plain = io.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return plain(file, mode, buffering, *rest, **named)
        count(file)
        raw = File(file, mode.replace("b", "").replace("t", ""))
        if "b" in mode and buffering == 0:
            return raw
        binary: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, *rest, **named)

    def guarded(name: str) -> None:
        original = getattr(os, name)

        def call(path: Any, *rest: Any, **named: Any) -> Any:
            count(path)
            return original(path, *rest, **named)

        setattr(os, name, call)

    import builtins

    builtins.open = io.open = opened  # type: ignore[assignment]
    for name in ("mkdir", "replace", "rename", "unlink"):
        guarded(name)
    low = os.open

    def low_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            count(path)
        return low(path, flags, *rest, **named)

    os.open = low_open


def _set_clock(path: str) -> None:
    real, steady = time.time, time.monotonic
    state = [0.0, 0.0]  # the shift in seconds, and the time of the last read

    def by() -> float:
        now = steady()
        if now - state[1] > 0.02:
            state[1] = now
            try:
                with io.FileIO(path) as file:
                    state[0] = float(file.read() or 0)
            except (OSError, ValueError):
                pass
        return state[0]

    time.time = lambda: real() + by()
    time.time_ns = lambda: int(time.time() * 1e9)
    try:
        from psutil import _pslinux
    except ImportError:
        return
    boot_time = _pslinux.boot_time
    _pslinux.boot_time = lambda: boot_time() + by()  # psutil derives the boot time from the wall clock


_here = str(Path(__file__).resolve().parent)
_clock = os.environ.get("FAULTS_CLOCK")
_paths = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if _clock or part != _here]
os.environ["PYTHONPATH"] = os.pathsep.join(_paths)
if _given := os.environ.pop("FAULTS_FAIL", ""):
    _fail(*_given.split(":", 3))
if _given := os.environ.pop("FAULTS_LIMIT", ""):
    _limit(*_given.split(":", 1))
if _clock:
    _set_clock(_clock)
