"""Report the Python warnings and the log records (level WARNING or higher) that the program shows.

The hook does not add a handler to any logger. If the root logger had a handler, ``logging.basicConfig`` would
do nothing, and messages would disappear.
"""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_method

_WARNING = 30  # logging.WARNING
_NUMBERS = re.compile(r"\d+")
_MOST_TEXT = 1000


def install(_: Any, probe: Probe) -> None:
    """Watch the module ``warnings``. If the training program has imported ``logging``, also watch it."""
    import warnings  # the interpreter loads this module at startup

    if probe.is_rank:
        probe.add("warnings", 0.0)  # the count is zero, which differs from an unknown count

    before = getattr(warnings, "_showwarnmsg_impl", None)
    if before is not None:

        def shown(message: Any) -> None:
            try:
                text, kind = str(message.message), message.category.__name__
                _report(probe, "warning", kind, text, f"{message.filename}:{message.lineno}")
            except Exception:
                probe.failed()
            before(message)

        # Do not replace ``showwarning``, because the source of a warning would no longer be shown.
        warnings._showwarnmsg_impl = shown  # type: ignore[attr-defined]
    logging = sys.modules.get("logging")
    if logging is not None:

        def handled(_: Any, frame: FrameType) -> None:
            record = frame.f_locals.get("record")
            if record is not None and record.levelno >= _WARNING:
                place = f"{record.pathname}:{record.lineno}"
                _report(probe, "log", f"{record.levelname} {record.name}", str(record.msg), place)

        notice_method(logging.Logger, "callHandlers", handled, probe.failed)


def _report(probe: Probe, kind: str, category: str, text: str, place: str) -> None:
    if not probe.is_rank and not probe.steps:
        return
    probe.add("warnings")
    text = text[:_MOST_TEXT]
    probe.event(
        kind, f"{category} {_NUMBERS.sub('#', text[:200])}", category=category, text=text, place=place
    )
