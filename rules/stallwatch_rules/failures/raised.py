"""An exception that a log tells of: its message, its calls, and what kind of end it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy

Kind = Literal["failure", "snippet", "ignored", "interrupt", "wrapper"]

_LAUNCHER_NAMES = ("ChildFailedError", "SignalException", "ProcessExitedException")
_LAUNCHER_FRAMES = lazy(
    r"torch/distributed/(?:run|launch|launcher/)|accelerate/commands/|deepspeed/launcher/|bin/(?:torchrun|deepspeed|accelerate)$"
)
_SNIPPET = lazy(r"^<(?:string|stdin|frozen [^>]*)>$")
_QUEUE_CLOSED = "Enqueue operation was cancelled"


class Frame(msgspec.Struct, frozen=True):
    """One call of a traceback."""

    path: str
    line: int
    name: str

    @property
    def library(self) -> bool:
        """Whether it is installed code rather than the user's own."""
        return not self.line or bool(_LIBRARY.search(self.path))

    def __str__(self) -> str:
        if not self.line:  # compiled code
            return f"{self.name} ({self.path})"
        return f"{self.path}:{self.line} in {self.name}" if self.name else f"{self.path}:{self.line}"


_SHOWN = lazy(r":\d+(?: in |$)")
_STARTER = lazy(r"[/\\]bin[/\\][\w-]+:\d+ in <module>$")  # written by pip: it only starts the program
_LIBRARY = lazy(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python3|[/\\]Lib[/\\]\w+\.py"
    r"|[/\\]python3\d*\.zip|^<frozen|^<string>$|^python/ray/"
)


def own_frame(shown: Sequence[str]) -> str:
    """Of frames as they are shown, innermost last, the user's own innermost; empty where there is none."""
    own = (frame for frame in reversed(shown) if _SHOWN.search(frame) and not _LIBRARY.search(frame))
    return next((frame for frame in own if not _STARTER.search(frame)), "")


class Mark(msgspec.Struct, frozen=True):
    """Where a stream was when a line came."""

    index: int = 0  #: lines before it
    advances: int = 0  #: steps that the stream had seen
    step: int | None = None  #: the last step that the stream itself had shown
    plain: int = 0  #: lines outside of tracebacks before it
    answers: int = 0  #: requests that a server had answered


class Raised(msgspec.Struct):
    """A chain of exceptions that a traceback (or a bare line) told; the last one is what ended the call."""

    exception: str  #: as printed, such as ``torch.OutOfMemoryError``; empty where the text ends before it
    message: str
    line: Line  #: the line with the final exception
    mark: Mark  #: where the stream was at that line
    frames: list[Frame] = []
    root: str = ""  #: the chain's first exception with its message, where there is a chain
    kind: Kind = "failure"
    rules: set[str] = set()  #: rules that matched in the chain
    group: bool = False  #: an exception group, whose parts follow behind a margin
    thread: bool = False  #: raised in a thread beside the main one, which goes on
    warned: bool = False  #: told by a logger with the level of a warning
    source: str = ""  #: the innermost call's own line of code, where it is shown
    native: bool = False  #: a crash of compiled code, which may come after the training's own end
    step: int | None = None  #: the run's step then, as far as the diagnosis could tell

    @property
    def of_destructor(self) -> bool:
        """Whether it came out of a ``__del__``, from where Python lets none go on."""
        return bool(self.frames) and self.frames[0].name == "__del__"


def kind_of(raised: Raised) -> Kind:
    """Whether it is a failure, the launcher's summary of one, or a stop by hand."""
    last = raised.exception.rpartition(".")[2]
    if last in ("KeyboardInterrupt", "SystemExit", "GeneratorExit"):
        return "interrupt"
    if raised.of_destructor:
        return "ignored"  # whatever was cut off above it
    if raised.thread and last == "CancelledError" and raised.message.startswith(_QUEUE_CLOSED):
        return "ignored"  # TensorFlow's feeding thread, when the session that it fed has ended
    if last in _LAUNCHER_NAMES:
        return "wrapper"
    launched = any(_LAUNCHER_FRAMES.search(frame.path.replace("\\", "/")) for frame in raised.frames)
    started_python = "python" in raised.message and ".py" in raised.message
    if last == "CalledProcessError" and (launched or started_python):
        return "wrapper"
    if not last and launched:  # cut off, and what ends a launcher's traceback is its summary
        return "wrapper"
    if raised.frames and all(_SNIPPET.match(frame.path) for frame in raised.frames):
        # Code without a file: what the program ran, such as a model's answer, or the program itself
        # (python -c). Only what follows tells.
        return "snippet"
    return "failure"
