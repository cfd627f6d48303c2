"""Where in the user's own code something happens, told by the frames that stand on the stack."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

_MOST_FRAMES = 100
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"


def place_of(frame: FrameType | None) -> str:
    """``file:line`` of the innermost call that is no library's; of `frame` itself where all are."""
    shown = own_frame(frame) or frame
    return f"{shown.f_code.co_filename}:{shown.f_lineno}" if shown is not None else ""


def own_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost call that is no library's."""
    for _ in range(_MOST_FRAMES):
        if frame is None or is_own(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def is_own(path: str) -> bool:
    """Whether a file is the user's own rather than an installed or a built-in one."""
    if path.startswith("<") or any(part in path for part in _LIBRARIES):
        return False
    return not path.startswith(_STANDARD)
