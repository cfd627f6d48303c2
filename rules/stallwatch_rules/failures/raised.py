"""Describe exceptions in a log: messages, stack frames, kinds, and the rule pages that name their places.

A function of a library often raises an exception for only one reason, although the message differs between
versions: an exception that is raised in torch's ``_env_rendezvous_handler`` means that an environment
variable is missing. Pages name such places (``raised_in``). A place is used only if the text of the exception
matches no page. The user's own code never counts as the code of a library, regardless of folder names. Frames
that called the user's code are ignored, because they did not raise the exception.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from stallwatch_rules.failures.advice import KINDS
from stallwatch_rules.pages.patterns import cached_re2
from stallwatch_rules.records import Line, UnknownException
from stallwatch_rules.text.display import earliest, place
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import masked, repeats

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RaisedIn, RulePage

Kind = Literal["failure", "snippet", "ignored", "interrupt", "wrapper"]
#: The setting in which an exception was raised: the main thread, another thread, a process of
#: ``multiprocessing``, a task of asyncio, or a place where Python drops it (``__del__``, atexit, a generator
#: that is closed). ``handled``: the program reports that it continues without the part that failed.
Setting = Literal["main", "thread", "child", "task", "ignored", "handled"]

_LAUNCHER_NAMES = ("ChildFailedError", "SignalException", "ProcessExitedException")
_LAUNCHER_FRAMES = lazy(
    r"torch/distributed/(?:run|launch|launcher/)|accelerate/commands/|deepspeed/launcher/|bin/(?:torchrun|deepspeed|accelerate)$"
)
_SIGNAL_NAMES = ("signal", "Fatal Python error", "terminate called")
_SNIPPET = lazy(r"^<(?:string|stdin|frozen [^>]*)>$")
_QUEUE_CLOSED = "Enqueue operation was cancelled"


class Frame(msgspec.Struct, frozen=True):
    """One stack frame of a traceback."""

    path: str
    line: int
    name: str

    @property
    def library(self) -> bool:
        """True if the code belongs to an installed package and not to the user."""
        return not self.line or bool(_LIBRARY.search(self.path))

    def __str__(self) -> str:
        if not self.line:  # a frame of compiled code has no line number
            return f"{self.name} ({self.path})"
        return f"{self.path}:{self.line} in {self.name}" if self.name else f"{self.path}:{self.line}"


_SHOWN = lazy(r":\d+(?: in |$)")
_STARTER = lazy(r"[/\\]bin[/\\][\w-]+:\d+ in <module>$")  # scripts that pip writes, only to start a program
_LIBRARY = lazy(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python3|[/\\]Lib[/\\]\w+\.py"
    r"|[/\\]python3\d*\.zip|^<frozen|^<string>$|^python/ray/|/share/lua/|/julia/(?:stdlib|packages)/"
)


def own_frame(shown: Sequence[str]) -> str:
    """Return the user's innermost frame among frames in text form; empty if all belong to libraries."""
    frames = (frame for frame in reversed(shown) if _SHOWN.search(frame) and not _LIBRARY.search(frame))
    return next((frame for frame in frames if not _STARTER.search(frame)), "")


class LinePosition(msgspec.Struct, frozen=True):
    """The position of a line in its stream."""

    index: int = 0  #: number of lines before the line
    advances: int = 0  #: number of steps that the stream had shown
    step: int | None = None  #: the last step that the stream itself had shown
    plain: int = 0  #: number of lines outside tracebacks before the line
    answers: int = 0  #: number of requests that a server had answered


class ExceptionChain(msgspec.Struct):
    """A chain of exceptions in a traceback, or a single exception in a line without a traceback.

    The last exception of a chain is the one that the program raised in the end.
    """

    exception: str  #: name as printed, such as ``torch.OutOfMemoryError``; empty if the text ends before it
    message: str
    line: Line  #: the line with the final exception
    mark: LinePosition  #: position of the stream at ``line``
    frames: list[Frame] = []
    root: str = ""  #: the chain's first exception with its message, if there is a chain
    kind: Kind = "failure"
    rules: set[str] = set()  #: rules that matched in the chain
    heading: set[str] = set()  #: rules that matched in the text above the header: the reason
    group: bool = False  #: True for an exception group, whose parts follow, indented by a margin
    setting: Setting = "main"
    warned: bool = False  #: True if logged at the level of a warning
    source: str = ""  #: the line of code of the innermost frame, if shown
    native: bool = False  #: True for a crash of compiled code, possibly after the training's own end
    step: int | None = None  #: the run's step at the exception, if the diagnosis knows it

    @property
    def shows_teardown(self) -> bool:
        """True if the exception only shows that another part of the program, such as a peer, has ended.

        Such an exception is the root cause only if nothing else explains the failure.
        """
        if not self.exception and self.setting == "thread" and of_helper(self):
            return True  # the traceback is truncated
        return self.kind == "ignored" or any(echo.agrees(self) for echo in ECHOES)

    @property
    def program(self) -> str:
        """The name of the script that ended with the exception; an empty string if it is unknown."""
        outermost = self.frames[0] if self.frames else None
        if outermost is None or outermost.name != "<module>" or self.kind != "failure":
            return ""
        name = re.split(r"[/\\]", outermost.path)[-1]
        return "" if name.startswith("<") else name  # "<string>" is a child process of any script

    @property
    def relays(self) -> bool:
        """True if the exception only reports the failure of another command, notebook cell or trial."""
        return any(echo.agrees(self) for echo in RELAYS)

    @property
    def lost_something(self) -> bool:
        """True if the main thread lost a peer or timed out while waiting, which may be the cause."""
        return self.setting == "main" and not self.shows_teardown and LOST.agrees(self)

    @property
    def gives_reason(self) -> bool:
        """True if compiled code crashed with a message that says more than the name of a signal."""
        signal = self.exception.startswith("SIG") or self.exception in _SIGNAL_NAMES
        return self.native and bool(self.message) and not signal

    @property
    def beside(self) -> bool:
        """True if the exception was not raised in the main thread of the program."""
        return self.setting != "main" or self.kind == "ignored"

    @property
    def of_destructor(self) -> bool:
        """True if the exception was raised in a ``__del__``, where Python does not let it propagate."""
        return bool(self.frames) and self.frames[0].name == "__del__"


#: The outermost frames of a thread, and of a process of Python's or torch's ``multiprocessing``.
_STARTS: Mapping[Setting, re.Pattern[str]] = {
    "thread": lazy(r"(?:^|[/\\])threading\.py in _bootstrap"),
    "child": lazy(
        r"(?:^|[/\\])(?:multiprocess(?:ing)?|loky)[/\\](?:[\w/\\]+[/\\])?(?:process\.py in _bootstrap"
        r"|spawn\.py in (?:spawn_main|_main)|(?:forkserver|resource_tracker)\.py in main)"
    ),
}


def setting_of(frames: Sequence[Frame], introduced: Setting = "main") -> Setting:
    """Return the setting of an exception, which its outermost frames or the line above its traceback show."""
    for frame in frames[:2] if introduced == "main" else ():  # a spawned process begins in "<string>"
        call = f"{frame.path} in {frame.name}"
        for setting, start in _STARTS.items():
            if start.search(call):
                return setting
    return introduced


class SecondaryException(NamedTuple):
    """A kind of exception that only shows that another part of the program has ended."""

    exceptions: str  #: expression for the name without its modules
    message: str = ""  #: expression that must be found in the message
    file: str = ""  #: expression that must be found in the path of the innermost frame
    beside: bool = False  #: True if the entry applies only outside the main thread

    def agrees(self, raised: ExceptionChain) -> bool:
        """Return whether the exception is of this kind."""
        name = raised.exception.rpartition(".")[2]
        if not re.fullmatch(self.exceptions, name) or not re.search(self.message, raised.message):
            return False
        if self.beside and not raised.beside:
            return False
        return not self.file or (bool(raised.frames) and bool(re.search(self.file, raised.frames[-1].path)))


_MULTIPROCESSING = r"[/\\]multiprocess(?:ing)?[/\\]\w+\.py$"
_LOST = r"(?:BrokenPipe|ConnectionAborted|ConnectionReset)Error|CancelledError|Empty"
_WORDLESS = r"^(?:$|\[(?:Errno|WinError) \d+\])"  # messages to which the raising code did not add any text
RELAYS = tuple(SecondaryException(kind.exceptions, kind.message) for kind in KINDS if kind.relays)
#: Exceptions of Python (Lib/multiprocessing, concurrent, asyncio, threading.py; Python/pylifecycle.c) and of
#: W&B.
ECHOES = (
    SecondaryException(_LOST, beside=True),
    SecondaryException(r"EOFError|(?:BrokenPipe|Connection\w+)Error", _WORDLESS, file=_MULTIPROCESSING),
    SecondaryException("EOFError", r"^$", beside=True),
    SecondaryException(r"(?:FileNotFound|ChildProcess|ProcessLookup|OS)Error", file=_MULTIPROCESSING),
    SecondaryException("KeyError", file=r"[/\\]resource_tracker\.py$"),
    SecondaryException("UnpicklingError", r"^pickle data was truncated", file=_MULTIPROCESSING),
    SecondaryException("ValueError", r"\bclosed file\b", beside=True),
    SecondaryException(
        "RuntimeError", r"^cannot schedule new futures after|^can't \w+ new thread at interpreter shutdown"
    ),
    SecondaryException("RuntimeError", r"^Event loop (?:is closed|stopped before)|^Session is closed"),
    SecondaryException("AssertionError", r"^can only (?:test|join) a child process"),
    SecondaryException(r"Broken(?:ProcessPool|ThreadPool|Executor)"),
    SecondaryException(r"Exception|\w*Error", r"^The wandb backend process has (?:been )?shut ?down"),
    SecondaryException("Fatal Python error", r"at interpreter shutdown|^_enter_buffered_busy"),
    SecondaryException("terminate called", r"^without an active exception"),
    *RELAYS,
)
#: Exceptions that the main thread raises if another part has ended, but also for other reasons.
LOST = SecondaryException(_LOST, _WORDLESS)


def kind_of(raised: ExceptionChain) -> Kind:
    """Return the kind of an exception: failure, launcher's summary, interrupt, snippet or ignored."""
    last = raised.exception.rpartition(".")[2]
    if last in ("KeyboardInterrupt", "SystemExit", "GeneratorExit"):
        return "interrupt"
    if raised.of_destructor or raised.setting in ("ignored", "handled"):
        return "ignored"  # a destructor's exception is ignored, even if the text above it was truncated
    if raised.setting == "thread" and last == "CancelledError" and raised.message.startswith(_QUEUE_CLOSED):
        return "ignored"  # TensorFlow's feeding thread, after the end of the session that it fed
    if last in _LAUNCHER_NAMES:
        return "wrapper"
    launched = any(_LAUNCHER_FRAMES.search(frame.path.replace("\\", "/")) for frame in raised.frames)
    started_python = "python" in raised.message and ".py" in raised.message
    if last == "CalledProcessError" and (launched or started_python):
        return "wrapper"
    if not last and launched:  # the traceback is truncated, and a launcher's traceback ends in its summary
        return "wrapper"
    if raised.frames and all(_SNIPPET.match(frame.path) for frame in raised.frames):
        # Code without a file is code that the program ran, such as a model's answer, or the program itself
        # (python -c). Only the following lines show which one it is.
        return "snippet"
    return "failure"


_PACKAGES = lazy(r"[/\\](?:site|dist)-packages[/\\]")
_TRACKERS = lazy(
    r"[/\\](?:site|dist)-packages[/\\]"
    r"(?:wandb|swanlab|mlflow|comet_ml|clearml|neptune|tensorboard|tensorboardX|visdom)[/\\]"
)
#: Exceptions of a request to a process that has ended, or that ended before its socket was opened.
_GONE = frozenset(
    ("BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError", "FileNotFoundError")
)


def of_helper(raised: ExceptionChain) -> bool:
    """Return whether an experiment tracker or a reader thread of ``subprocess`` raised the exception.

    All frames must belong to libraries. The outermost frame of an installed package shows which package it
    is, because packages and the standard library call each other.
    """
    if not raised.frames or not all(frame.library for frame in raised.frames):
        return False
    installed = [frame for frame in raised.frames if _PACKAGES.search(frame.path)]
    if installed:
        return _TRACKERS.search(installed[0].path) is not None
    readers = (frame for frame in raised.frames if frame.name == "_readerthread")
    return raised.setting == "thread" and any(_is_in_file(frame, "subprocess.py") for frame in readers)


def pins_batches(raised: ExceptionChain) -> bool:
    """Return whether a data loader's thread that pins memory lost a worker.

    The thread (torch's ``_utils/pin_memory.py``) then fails to connect to the worker (``multiprocessing``).
    """
    if raised.setting != "thread" or raised.exception not in _GONE:
        return False
    names = {frame.name for frame in raised.frames}
    return "_pin_memory_loop" in names and any(_is_in_file(frame, "connection.py") for frame in raised.frames)


def _is_in_file(frame: Frame, file: str) -> bool:
    return re.split(r"[/\\]", frame.path)[-1] == file


DEEP = 3  #: minimum number of parts of a folder's path that identifies a package
MAX_DEPTH = 25  #: maximum number of innermost frames to inspect: outer frames are not specific


def page_of_place(raised: ExceptionChain, pages: Iterable[RulePage]) -> tuple[RulePage, Frame | None] | None:
    """Return the page that names the place where an exception was raised, and the frame at that place.

    The innermost frame that a page names counts. A page that also gives a message takes precedence, and a
    frame takes precedence over the mere name of an exception, for which no frame is returned. Return ``None``
    if two pages match equally well.
    """
    best: list[tuple[tuple[bool, int, int], str, RulePage, Frame | None]] = []
    calls = _up_to_user_code(list(reversed(raised.frames))[:MAX_DEPTH])
    for page in pages:
        found = [
            (
                (bool(place.message), -depth, bool(place.functions) + bool(place.exceptions)),
                page.id,
                page,
                call,
            )
            for place in page.raised_in
            if _fits(place, raised)
            for depth, call in _frames_at(place, calls)
        ]
        if found:
            best.append(max(found, key=lambda entry: entry[0]))
    best.sort(key=lambda entry: (entry[0], entry[1]), reverse=True)
    if not best or (len(best) > 1 and best[0][0] == best[1][0]):
        return None
    return best[0][2], best[0][3]


def _fits(place: RaisedIn, raised: ExceptionChain) -> bool:
    """Return whether an exception has a name and a message that a page gives for a place.

    The name is unknown if the traceback is truncated. The frames are then sufficient.
    """
    cut_off = not raised.exception and place.file
    named = any(f".{raised.exception}".endswith(f".{name}") for name in place.exceptions)
    if place.exceptions and not named and not cut_off:
        return False
    return not place.message or found_in(place.message, raised.message)


def _up_to_user_code(calls: list[Frame]) -> list[Frame]:
    """Return the frames, the innermost first, up to the user's own innermost frame."""
    outermost = next((depth for depth, call in enumerate(calls) if not call.library), len(calls))
    return calls[: outermost + 1]


def _frames_at(place: RaisedIn, calls: list[Frame]) -> list[tuple[int, Frame | None]]:
    """Return the frames at a place that a page names, with their depths; the innermost frame has depth 0."""
    if not place.file:
        return [(len(calls), None)]
    looked_at = calls if place.below else calls[:1]
    return [(depth, call) for depth, call in enumerate(looked_at) if _is_at(place, call)]


def _is_at(place: RaisedIn, call: Frame) -> bool:
    path = "/" + call.path.replace("\\", "/")
    if place.file.endswith("/"):
        # A user's own folder may have a short name, too; a long name may belong to a checkout.
        inside = (call.library or place.file.count("/") >= DEEP) and f"/{place.file}" in path
    else:
        inside = path.endswith(f"/{place.file}")
    return inside and (not place.functions or call.name.rpartition(".")[2] in place.functions)


def found_in(pattern: str, text: str) -> bool:
    return bool(cached_re2(pattern, encoded=False).search(text))


MAX_KINDS = 200  #: maximum number of different exceptions per stream: a log may contain many tracebacks
USER_FRAMES, LIBRARY_FRAMES = 8, 4

Key = tuple[str, str, str]


class CountedException(msgspec.Struct):
    """One exception in one stream, with its number of occurrences."""

    raised: ExceptionChain  #: the first occurrence of the exception
    count: int
    last: ExceptionChain


class ExceptionTable(msgspec.Struct):
    """The exceptions of one stream."""

    seen: dict[Key, CountedException] = {}

    def add(self, raised: ExceptionChain) -> None:
        """Count an exception; those with the same name, place and masked message are counted together."""
        key = _kind_key(raised)
        known = self.seen.get(key)
        if known is not None:
            known.count += 1
            known.last = raised
            known.raised.rules |= raised.rules
        elif len(self.seen) < MAX_KINDS:
            self.seen[key] = CountedException(raised, 1, raised)

    def with_left(self, left: Iterable[ExceptionChain]) -> ExceptionTable:
        """Return a copy that also counts ``left``: exceptions that are unfinished when the stream ends."""
        copy = ExceptionTable(
            {key: CountedException(s.raised, s.count, s.last) for key, s in self.seen.items()}
        )
        for raised in left:
            copy.add(raised)
        return copy


def unknown_in(
    table: ExceptionTable, known: Collection[str], aborts: Collection[str] = ()
) -> list[CountedException]:
    """Return the failures of a stream that none of the rules in ``known`` matched.

    ``aborts`` are rules that match any SIGABRT, whatever its reason. They do not explain a crash whose
    message states its reason.
    """
    return [
        seen
        for seen in table.seen.values()
        if seen.raised.kind in ("failure", "snippet")
        and seen.raised.rules.isdisjoint(set(known) - set(aborts) if seen.raised.gives_reason else known)
    ]


def fold(seen: Iterable[CountedException]) -> list[UnknownException]:
    """Merge exceptions that are the same on several ranks into one record each; sort the records by time."""
    groups: dict[Key, list[CountedException]] = {}
    for each in seen:
        groups.setdefault(_kind_key(each.raised), []).append(each)
    ordered = sorted(groups.values(), key=lambda group: _by_time(earliest(s.raised.line for s in group)))
    return [_record(group) for group in ordered]


def _record(group: list[CountedException]) -> UnknownException:
    line = earliest(seen.raised.line for seen in group)
    first = next(seen.raised for seen in group if seen.raised.line is line)
    return UnknownException(
        exception=first.exception,
        message=repeats(first.message)[0],
        ranks=sorted({seen.raised.line.rank for seen in group if seen.raised.line.rank is not None}),
        count=sum(seen.count for seen in group),
        first=place(line, first.step),
        frames=shown_frames(first.frames),
        root=first.root,
    )


def shown_frames(frames: list[Frame]) -> list[str]:
    """Return the innermost frames of the user's code and of libraries, in the order of the calls."""
    own = [at for at, frame in enumerate(frames) if not frame.library]
    library = [at for at, frame in enumerate(frames) if frame.library]
    return [str(frames[at]) for at in sorted(own[-USER_FRAMES:] + library[-LIBRARY_FRAMES:])]


def _kind_key(raised: ExceptionChain) -> Key:
    where = next((str(frame) for frame in reversed(raised.frames) if not frame.library), "")
    return raised.exception, masked(raised.message)[:200], masked(where.rpartition("/")[2])


def _by_time(line: Line) -> tuple[bool, float, bool, int, str, int]:
    return (
        line.time is None,
        line.time or 0.0,
        line.rank is None,
        line.rank or 0,
        line.source,
        line.number,
    )
