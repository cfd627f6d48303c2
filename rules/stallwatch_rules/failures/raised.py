"""An exception in a log: its message, its calls, the kind of its end, and the page that its place belongs to.

A library's function often raises for one reason, whatever words a version has for it: whoever ends in torch's
``_env_rendezvous_handler`` lacks an environment variable. Pages name such places (``raised_in``), and they
are consulted only for an exception that no page knows by its words. The user's own code is no library's,
whatever its folders are called, and what called it did not raise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from stallwatch_rules.pages.patterns import cached_re2
from stallwatch_rules.records import Line, UnknownException
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import masked, repeats
from stallwatch_rules.text.reported import earliest, place

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RaisedIn, RulePage

Kind = Literal["failure", "snippet", "ignored", "interrupt", "wrapper"]
#: Where an exception was raised: in the main thread, another thread, a process of ``multiprocessing``, a task
#: of asyncio, or where Python drops it (``__del__``, atexit, a generator that is closed); or that the program
#: says it goes on without what failed.
Setting = Literal["main", "thread", "child", "task", "ignored", "handled"]

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
    heading: set[str] = set()  #: rules that matched in the words before its header: it is the reason for them
    group: bool = False  #: an exception group, whose parts follow behind a margin
    setting: Setting = "main"
    warned: bool = False  #: told by a logger with the level of a warning
    source: str = ""  #: the innermost call's own line of code, where it is shown
    native: bool = False  #: a crash of compiled code, which may come after the training's own end
    step: int | None = None  #: the run's step then, as far as the diagnosis could tell

    @property
    def shows_teardown(self) -> bool:
        """Whether it only says that somebody else has ended: its peer, its process, its event loop.

        Such an exception is the root cause only of what nothing else explains.
        """
        if not self.exception and self.setting == "thread" and of_helper(self):
            return True  # cut off
        return self.kind == "ignored" or any(echo.agrees(self) for echo in ECHOES)

    @property
    def lost_something(self) -> bool:
        """Whether the main thread lost a peer or waited in vain, which may be the cause."""
        return self.setting == "main" and not self.shows_teardown and LOST.agrees(self)

    @property
    def beside(self) -> bool:
        """Whether it was raised beside the program's main thread."""
        return self.setting != "main" or self.kind == "ignored"

    @property
    def of_destructor(self) -> bool:
        """Whether it came out of a ``__del__``, from where Python lets none go on."""
        return bool(self.frames) and self.frames[0].name == "__del__"


#: The outermost calls of a thread, and of a process of Python's or torch's ``multiprocessing``.
_STARTS: tuple[tuple[Setting, re.Pattern[str]], ...] = (
    ("thread", lazy(r"(?:^|[/\\])threading\.py in _bootstrap")),
    (
        "child",
        lazy(
            r"(?:^|[/\\])(?:multiprocess(?:ing)?|loky)[/\\](?:[\w/\\]+[/\\])?"
            r"(?:process\.py in _bootstrap|spawn\.py in (?:spawn_main|_main)"
            r"|(?:forkserver|resource_tracker)\.py in main)"
        ),
    ),
)


def setting_of(frames: Sequence[Frame], introduced: Setting = "main") -> Setting:
    """Return where an exception with these calls was raised, and as the line above its traceback says."""
    for frame in frames[:2] if introduced == "main" else ():  # a spawned process begins in "<string>"
        call = f"{frame.path} in {frame.name}"
        for setting, start in _STARTS:
            if start.search(call):
                return setting
    return introduced


class Echo(NamedTuple):
    """Exceptions that only say that somebody else has ended."""

    exceptions: str  #: a pattern of the name without its modules
    message: str = ""  #: a pattern that must be found in the message
    file: str = ""  #: a pattern that the innermost call's file must have
    beside: bool = False  #: only where it was not raised in the main thread

    def agrees(self, raised: Raised) -> bool:
        """Return whether the exception is such a one."""
        name = raised.exception.rpartition(".")[2]
        if not re.fullmatch(self.exceptions, name) or not re.search(self.message, raised.message):
            return False
        if self.beside and not raised.beside:
            return False
        return not self.file or (bool(raised.frames) and bool(re.search(self.file, raised.frames[-1].path)))


_MULTIPROCESSING = r"[/\\]multiprocess(?:ing)?[/\\]\w+\.py$"
_LOST = r"(?:BrokenPipe|ConnectionAborted|ConnectionReset)Error|CancelledError|Empty"
_WORDLESS = r"^(?:$|\[(?:Errno|WinError) \d+\])"  # no words of whoever raised it
#: Of Python (Lib/multiprocessing, concurrent, asyncio, threading.py; Python/pylifecycle.c), and of W&B.
ECHOES = (
    Echo(_LOST, beside=True),
    Echo(r"EOFError|(?:BrokenPipe|Connection\w+)Error", _WORDLESS, file=_MULTIPROCESSING),
    Echo("EOFError", r"^$", beside=True),
    Echo(r"(?:FileNotFound|ChildProcess|ProcessLookup|OS)Error", file=_MULTIPROCESSING),
    Echo("KeyError", file=r"[/\\]resource_tracker\.py$"),
    Echo("UnpicklingError", r"^pickle data was truncated", file=_MULTIPROCESSING),
    Echo("ValueError", r"\bclosed file\b", beside=True),
    Echo("RuntimeError", r"^cannot schedule new futures after|^can't \w+ new thread at interpreter shutdown"),
    Echo("RuntimeError", r"^Event loop (?:is closed|stopped before)|^Session is closed"),
    Echo("AssertionError", r"^can only (?:test|join) a child process"),
    Echo(r"Broken(?:ProcessPool|ThreadPool|Executor)"),
    Echo(r"Exception|\w*Error", r"^The wandb backend process has (?:been )?shut ?down"),
    Echo("Fatal Python error", r"at interpreter shutdown|^_enter_buffered_busy"),
    Echo("terminate called", r"^without an active exception"),
)
#: What the main thread raises for that, and for other reasons.
LOST = Echo(_LOST, _WORDLESS)


def kind_of(raised: Raised) -> Kind:
    """Whether it is a failure, the launcher's summary of one, or a stop by hand."""
    last = raised.exception.rpartition(".")[2]
    if last in ("KeyboardInterrupt", "SystemExit", "GeneratorExit"):
        return "interrupt"
    if raised.of_destructor or raised.setting in ("ignored", "handled"):
        return "ignored"  # for a destructor, whatever was cut off above it
    if raised.setting == "thread" and last == "CancelledError" and raised.message.startswith(_QUEUE_CLOSED):
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


_PACKAGES = lazy(r"[/\\](?:site|dist)-packages[/\\]")
_TRACKERS = lazy(
    r"[/\\](?:site|dist)-packages[/\\]"
    r"(?:wandb|swanlab|mlflow|comet_ml|clearml|neptune|tensorboard|tensorboardX)[/\\]"
)
#: What a process raises that asks another which is gone, or was before its file for questions was opened.
_GONE = frozenset(
    ("BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError", "FileNotFoundError")
)


def of_helper(raised: Raised) -> bool:
    """Whether all calls of an exception are a tracker's, or of ``subprocess`` where it reads in a thread.

    Both call Python's own library and what is installed; the outermost installed call tells whose they are.
    """
    if not raised.frames or not all(frame.library for frame in raised.frames):
        return False
    installed = [frame for frame in raised.frames if _PACKAGES.search(frame.path)]
    if installed:
        return _TRACKERS.search(installed[0].path) is not None
    return raised.setting == "thread" and any(_reads_output(frame) for frame in raised.frames)


def pins_batches(raised: Raised) -> bool:
    """Whether a data loader's thread that pins batches lost a worker (torch's ``_utils/pin_memory.py``).

    What it takes over from a worker that is gone fails in the connection to it (``multiprocessing``).
    """
    names = {frame.name for frame in raised.frames}
    asked = any(re.split(r"[/\\]", frame.path)[-1] == "connection.py" for frame in raised.frames)
    return raised.setting == "thread" and raised.exception in _GONE and "_pin_memory_loop" in names and asked


def _reads_output(frame: Frame) -> bool:
    """Whether it is the thread of ``subprocess.Popen.communicate`` (Python's ``Lib/subprocess.py``)."""
    return frame.name == "_readerthread" and re.split(r"[/\\]", frame.path)[-1] == "subprocess.py"


DEEP = 3  #: so many parts make a folder's name its package's own
MAX_DEPTH = 25  #: innermost calls that are looked at: what lies further out called many other things


def page_of_place(raised: Raised, pages: Iterable[RulePage]) -> tuple[RulePage, Frame | None] | None:
    """The page with the innermost call among its places, and that call; ``None`` where two agree as well.

    A place with a message's pattern counts before one without it, and a call before an exception's name alone
    (then there is no call).
    """
    best: list[tuple[_Order, str, RulePage, Frame | None]] = []
    calls = _inside(list(reversed(raised.frames))[:MAX_DEPTH])
    for page in pages:
        found = [
            (_rank_of_place(place, depth), page.id, page, call)
            for place in page.raised_in
            if _agrees(place, raised)
            for depth, call in _where(place, calls)
        ]
        if found:
            best.append(max(found, key=lambda one: one[0]))
    best.sort(key=lambda one: (one[0], one[1]), reverse=True)
    if not best or (len(best) > 1 and best[0][0] == best[1][0]):
        return None
    return best[0][2], best[0][3]


_Order = tuple[bool, int, int]


def _rank_of_place(place: RaisedIn, depth: int) -> _Order:
    return bool(place.message), -depth, bool(place.functions) + bool(place.exceptions)


def _agrees(place: RaisedIn, raised: Raised) -> bool:
    """Whether the exception is such a one; one that was cut off may be, where a call tells and no message."""
    cut_off = not raised.exception and place.file
    if place.exceptions and not cut_off and not any(_is(raised.exception, name) for name in place.exceptions):
        return False
    return not place.message or found_in(place.message, raised.message)


def _is(exception: str, name: str) -> bool:
    return exception == name or exception.endswith(f".{name}")


def _inside(calls: list[Frame]) -> list[Frame]:
    """From the innermost call to the user's own innermost one: a library around that ran the user's code."""
    own = next((depth for depth, call in enumerate(calls) if not call.library), len(calls))
    return calls[: own + 1]


def _where(place: RaisedIn, calls: list[Frame]) -> list[tuple[int, Frame | None]]:
    """The calls at a place, with how far inside they are: 0 is the innermost."""
    if not place.file:
        return [(len(calls), None)]
    looked_at = calls if place.below else calls[:1]
    return [(depth, call) for depth, call in enumerate(looked_at) if _at(place, call)]


def _at(place: RaisedIn, call: Frame) -> bool:
    path = "/" + call.path.replace("\\", "/")
    if place.file.endswith("/"):
        # A short name is one that folders of anybody's own have, too; a long one may be a checkout's.
        inside = (call.library or place.file.count("/") >= DEEP) and f"/{place.file}" in path
    else:
        inside = path.endswith(f"/{place.file}")
    return inside and (not place.functions or call.name.rpartition(".")[2] in place.functions)


def found_in(pattern: str, text: str) -> bool:
    """Whether a page's pattern is found in a text."""
    return bool(cached_re2(pattern, encoded=False).search(text))


MAX_KINDS = 200  #: different exceptions kept per stream; a log may hold millions of tracebacks
USER_FRAMES, LIBRARY_FRAMES = 8, 4

Key = tuple[str, str, str]


class Seen(msgspec.Struct):
    """One exception in one stream, as often as it came."""

    raised: Raised  #: the first time
    count: int
    last: Raised


class ExceptionTable(msgspec.Struct):
    """The exceptions of one stream."""

    seen: dict[Key, Seen] = {}

    def add(self, raised: Raised) -> None:
        """Count an exception that was raised."""
        key = _kind_key(raised)
        known = self.seen.get(key)
        if known is not None:
            known.count += 1
            known.last = raised
            known.raised.rules |= raised.rules
        elif len(self.seen) < MAX_KINDS:
            self.seen[key] = Seen(raised, 1, raised)

    def with_left(self, left: Iterable[Raised]) -> ExceptionTable:
        """A copy that also counts what stands unfinished at the stream's present end."""
        copy = ExceptionTable({key: Seen(s.raised, s.count, s.last) for key, s in self.seen.items()})
        for raised in left:
            copy.add(raised)
        return copy


def unknown_in(table: ExceptionTable, known: Collection[str]) -> list[Seen]:
    """The failures of a stream in which none of the known rules matched."""
    return [
        seen
        for seen in table.seen.values()
        if seen.raised.kind in ("failure", "snippet") and seen.raised.rules.isdisjoint(known)
    ]


def fold(seen: Iterable[Seen]) -> list[UnknownException]:
    """The same exception on many ranks as one record, the earliest first."""
    groups: dict[Key, list[Seen]] = {}
    for one in seen:
        groups.setdefault(_kind_key(one.raised), []).append(one)
    ordered = sorted(groups.values(), key=lambda group: _by_time(earliest(s.raised.line for s in group)))
    return [_record(group) for group in ordered]


def _record(group: list[Seen]) -> UnknownException:
    line = earliest(one.raised.line for one in group)
    first = next(one.raised for one in group if one.raised.line is line)
    return UnknownException(
        exception=first.exception,
        message=repeats(first.message)[0],
        ranks=sorted({one.raised.line.rank for one in group if one.raised.line.rank is not None}),
        count=sum(one.count for one in group),
        first=place(line, first.step),
        frames=shown_frames(first.frames),
        root=first.root,
    )


def shown_frames(frames: list[Frame]) -> list[str]:
    """The innermost calls, the user's own before the libraries'; innermost last in each."""
    user = [str(frame) for frame in frames if not frame.library]
    library = [str(frame) for frame in frames if frame.library]
    return user[-USER_FRAMES:] + library[-LIBRARY_FRAMES:]


def _kind_key(raised: Raised) -> Key:
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
