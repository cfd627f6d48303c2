"""Report how a rank ends: with or without an exception.

A library, such as rich or loguru, or a training script that cleans up can replace the probe's
``sys.excepthook``. However, Python stores an exception that ended the program in ``sys.last_value`` before it
calls any hook (``_PyErr_PrintEx`` in CPython's ``pythonrun.c``). Therefore, the exit handler finds exceptions
there that the hook missed. Python does not store a ``SystemExit`` (``handle_system_exit`` in the same file),
so a wrapper of ``sys.exit`` records the exit code. A ``raise SystemExit(1)`` without ``sys.exit`` can be
observed only from outside the process (``rings/exits.py``).

A rank that ``multiprocessing`` forked (``torch.multiprocessing.start_processes(start_method="fork")``,
Lightning's ``ddp_fork``, accelerate's ``notebook_launcher``) ends with a call to ``os._exit``, which does
not run ``atexit`` handlers. Such a rank runs multiprocessing's own finalizers while the exception that ends
the process is still being handled (``BaseProcess._bootstrap`` in CPython 3.8 to 3.13,
``multiprocessing/process.py``).
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from types import TracebackType
from typing import Any, NoReturn

from ..api import Probe
from .reports import quietly, report_versions

_MOST_FRAMES = 40
_LAST = -100  # priority of the probe's finalizer, which multiprocessing runs after the program's finalizers


def install(_: Any, probe: Probe) -> None:
    """Report an exception that ends the process, and the end of the process."""
    reported: list[BaseException] = []
    exits: list[bool] = []  # contains True if the code of the last `sys.exit` means a failure
    before = sys.excepthook
    leave = sys.exit

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        reported.append(error)
        report(probe, error, trace)
        before(kind, error, trace)

    @functools.wraps(leave)
    def noting(*status: Any) -> NoReturn:
        # In other threads, `sys.exit` ends only the thread.
        if threading.current_thread() is threading.main_thread():
            exits[:] = [_fails(status)]
        leave(*status)

    def leaving() -> None:
        last = getattr(sys, "last_value", None)
        if last is not None and not any(error is last for error in reported):
            report(probe, last, getattr(sys, "last_traceback", None))
        probe.event("left", error=last is not None or True in exits, step=probe.steps)

    def leaving_fork() -> None:
        """If a forked child process is a rank, report its end. A data worker has reported nothing."""
        error = sys.exc_info()[1]
        if probe.reports:
            if isinstance(error, SystemExit):
                exits[:] = [_fails(error.args)]
                error = None
            if error is not None:
                report(probe, error, error.__traceback__)
            probe.event("left", error=error is not None or True in exits, step=probe.steps)

    def stand_by_in_child(_: object) -> None:
        exits.clear()
        reported.clear()
        sys.modules["multiprocessing.util"].Finalize(None, quietly(leaving_fork, probe), exitpriority=_LAST)

    def before_fork() -> None:
        util = sys.modules.get("multiprocessing.util")  # the training process has imported this module
        if util is not None and not waiting:
            waiting.append(True)
            util.register_after_fork(stand_by_in_child, quietly(stand_by_in_child, probe))

    waiting: list[bool] = []
    sys.excepthook = hook
    sys.exit = noting
    atexit.register(quietly(leaving, probe))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=quietly(before_fork, probe))


def _fails(status: tuple[Any, ...]) -> bool:
    """Return whether ``sys.exit`` with these arguments ends the process with an exit code other than 0."""
    code = status[0] if status else None
    return bool(code % 256) if isinstance(code, int) else code is not None


def report(probe: Probe, error: BaseException, trace: TracebackType | None) -> None:
    """Report an exception with its innermost frames."""
    try:
        if not isinstance(error, KeyboardInterrupt):
            report_versions(probe)
            name = f"{type(error).__module__}.{type(error).__qualname__}"
            probe.event("exception", exception=name, message=str(error)[:2000], frames=frames_of(trace))
    except Exception:
        probe.failed()


def frames_of(trace: TracebackType | None) -> list[str]:
    """Return the innermost frames of a traceback as ``file:line function``, outermost first."""
    found: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append(f"{code.co_filename}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return found[-_MOST_FRAMES:]
