"""Describe the exceptions in a log, and find the rule pages that name the code that raised the exceptions.

A library function often raises an exception for only one reason, although the message differs between
versions. For example, an exception raised in the torch function ``_env_rendezvous_handler`` means that an
environment variable is missing. Rule pages name such functions in ``raised_in``. This key is used only if no
page matches the text of the exception. The user's own code never counts as library code, regardless of the
names of its folders. Frames that called the user's code are ignored, because they did not raise the
exception.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch_rules.failures.advice import KINDS
from stallwatch_rules.pages.patterns import cached_re2
from stallwatch_rules.records import Line, UnknownException
from stallwatch_rules.text.display import earliest, place
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import masked, repeats

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RaisedIn, RulePage

Kind = Literal["failure", "snippet", "ignored", "interrupt", "wrapper"]
#: The part of the program in which an exception was raised: the main thread, another thread, a process of
#: ``multiprocessing``, a task of asyncio, or code whose exceptions Python ignores. Examples of such code
#: are ``__del__``, atexit, and a generator that is closed. ``handled`` means that the program reports that
#: it continues without the failed part. ``hook`` is ``sys.excepthook``, which reports a different exception
#: that ended the program.
Setting = Literal["main", "thread", "child", "task", "ignored", "handled", "hook"]

_LAUNCHER_NAMES = ("ChildFailedError", "SignalException", "ProcessExitedException")
_LAUNCHER_FRAMES = lazy(
    r"torch/distributed/(?:run|launch|launcher/)|accelerate/commands/|deepspeed/launcher/|bin/(?:torchrun|deepspeed|accelerate)$"
)
_SIGNAL_NAMES = ("signal", "Fatal Python error", "terminate called")
_SNIPPET = lazy(r"^<(?:string|stdin|frozen [^>]*)>$")
_QUEUE_CLOSED = "Enqueue operation was cancelled"


class Frame(msgspec.Struct, frozen=True):
    """One stack frame in a traceback."""

    path: str
    line: int
    name: str

    @property
    def library(self) -> bool:
        """True if the code belongs to an installed package rather than to the user."""
        return not self.line or bool(_LIBRARY.search(self.path))

    def __str__(self) -> str:
        if not self.line:  # a frame of compiled code has no line number
            return f"{self.name} ({self.path})"
        return f"{self.path}:{self.line} in {self.name}" if self.name else f"{self.path}:{self.line}"


_SHOWN = lazy(r":\d+(?: in |$)")
_STARTER = lazy(r"[/\\]bin[/\\][\w-]+:\d+ in <module>$")  # scripts created by pip that only start a program
# Generated code, such as ``<string>`` or ``<__array_function__ internals>``, is in no file. A name in angle
# brackets is the user's own code only if it is standard input, a cell of a notebook, or a doctest.
_LIBRARY = lazy(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python3|[/\\]Lib[/\\]\w+\.py"
    r"|[/\\]python3\d*\.zip|^<(?!(?:stdin|console|input|i?python-input|command|timed|doctest)\b)|^python/ray/"
    r"|/share/lua/|/julia/(?:stdlib|packages)/"
)


def own_frame(shown: Sequence[str]) -> str:
    """Return the user's innermost frame among printed frames, or an empty string if there is none."""
    frames = (frame for frame in reversed(shown) if _SHOWN.search(frame) and not _LIBRARY.search(frame))
    return next((frame for frame in frames if not _STARTER.search(frame)), "")


class LinePosition(msgspec.Struct, frozen=True):
    """The position of a line in its stream."""

    index: int = 0  #: number of lines of the stream before this line
    advances: int = 0  #: number of training steps in the stream before this line
    step: int | None = None  #: number of the last training step in the stream before this line
    plain: int = 0  #: number of lines of the stream outside tracebacks before this line
    answers: int = 0  #: number of requests that the server answered before this line


class ExceptionChain(msgspec.Struct):
    """A chain of exceptions from a traceback, or a single exception from a line without a traceback.

    The last exception of the chain is the exception that finally propagated.
    """

    #: Printed name, such as ``torch.OutOfMemoryError``, or an empty string if the text is truncated before
    #: the name.
    exception: str
    message: str
    line: Line  #: the line with the final exception
    mark: LinePosition  #: position of the stream at ``line``
    frames: list[Frame] = []
    root: str = ""  #: the first exception of a chain, with its message (empty for a single exception)
    kind: Kind = "failure"
    rules: set[str] = set()  #: rules that matched lines of the chain
    #: Rules that matched the text before the traceback's header. This text states the reason.
    heading: set[str] = set()
    group: bool = False  #: True for an exception group; its parts follow, and a margin indents them
    setting: Setting = "main"
    warned: bool = False  #: True if a logger printed the exception with the level of a warning
    logged: bool = False  #: True if a logger printed the entire traceback as one message, with any level
    worked: int | None = None  #: number of lines about work before it, if its process is observed
    source: str = ""  #: the line of code of the innermost frame, if the traceback contains it
    native: bool = False  #: True for a crash of compiled code, which can occur after the training ended
    rank: int | None = None  #: rank of the exception, if a launcher's summary quotes the exception
    step: int | None = None  #: training step of the run when the exception was raised, if it is known

    @property
    def shows_teardown(self) -> bool:
        """True if the exception shows only that another part of the program, such as a peer, has ended.

        Such an exception is the root cause only if no other exception or rule explains the failure.
        """
        if not self.exception and self.setting == "thread" and of_helper(self):
            return True  # the traceback is truncated
        return self.kind == "ignored" or any(echo.agrees(self) for echo in ECHOES)

    @property
    def program(self) -> str:
        """The name of the script that the exception ended, or an empty string if it is unknown."""
        outermost = self.frames[0] if self.frames else None
        if outermost is None or outermost.name != "<module>" or self.kind != "failure":
            return ""
        name = re.split(r"[/\\]", outermost.path)[-1]
        # A child process of any script can have the name "<string>".
        return "" if name.startswith("<") else name

    @property
    def relays(self) -> bool:
        """True if the exception reports only the failure of another command, notebook cell, or trial."""
        return any(echo.agrees(self) for echo in RELAYS)

    @property
    def lost_something(self) -> bool:
        """True if the main thread lost a peer or timed out while it waited.

        Such an exception might be the cause of the failure.
        """
        return self.setting == "main" and not self.shows_teardown and LOST.agrees(self)

    @property
    def lacks_message(self) -> bool:
        """True if compiled code crashed and the message is missing, because another line contains it."""
        return self.native and not self.message and self.exception.lower().endswith("error")

    @property
    def gives_reason(self) -> bool:
        """True if compiled code crashed with a message that contains more than the name of a signal."""
        signal = self.exception.startswith("SIG") or self.exception in _SIGNAL_NAMES
        return self.native and bool(self.message) and not signal

    @property
    def beside(self) -> bool:
        """True if the exception was raised outside the program's main thread."""
        return self.setting != "main" or self.kind == "ignored"

    @property
    def of_destructor(self) -> bool:
        """True if the exception was raised in ``__del__``, where Python does not propagate exceptions."""
        return bool(self.frames) and self.frames[0].name == "__del__"


#: Outermost frames of a thread, and of a process of ``multiprocessing`` in Python or torch.
_STARTS: Mapping[Setting, re.Pattern[str]] = {
    "thread": lazy(r"(?:^|[/\\])threading\.py in _bootstrap"),
    "child": lazy(
        r"(?:^|[/\\])(?:multiprocess(?:ing)?|loky)[/\\](?:[\w/\\]+[/\\])?(?:process\.py in _bootstrap"
        r"|spawn\.py in (?:spawn_main|_main)|(?:forkserver|resource_tracker)\.py in main)"
    ),
}


def setting_of(frames: Sequence[Frame], introduced: Setting = "main") -> Setting:
    """Return an exception's setting, as shown by the line before its traceback or by its outermost frames."""
    # The first frame of a spawned process is in "<string>".
    for frame in frames[:2] if introduced == "main" else ():
        call = f"{frame.path} in {frame.name}"
        for setting, start in _STARTS.items():
            if start.search(call):
                return setting
    return introduced


class SecondaryException(NamedTuple):
    """A kind of exception that shows only that another part of the program has ended."""

    exceptions: str  #: regular expression for the exception's name without its modules
    message: str = ""  #: regular expression that must match part of the message
    file: str = ""  #: regular expression that must match part of the path of the innermost frame
    beside: bool = False  #: True if the entry applies only outside the main thread

    def agrees(self, raised: ExceptionChain) -> bool:
        """Return whether an exception is of this kind."""
        name = raised.exception.rpartition(".")[2]
        if not re.fullmatch(self.exceptions, name) or not re.search(self.message, raised.message):
            return False
        if self.beside and not raised.beside:
            return False
        return not self.file or (bool(raised.frames) and bool(re.search(self.file, raised.frames[-1].path)))


_MULTIPROCESSING = r"[/\\]multiprocess(?:ing)?[/\\]\w+\.py$"
_LOST = r"(?:BrokenPipe|ConnectionAborted|ConnectionReset)Error|CancelledError|Empty"
# Messages without text from the code that raised the exception.
_WORDLESS = r"^(?:$|\[(?:Errno|WinError) \d+\])"
RELAYS = tuple(SecondaryException(kind.exceptions, kind.message) for kind in KINDS if kind.relays)
#: Exceptions that Python (Lib/multiprocessing, concurrent, asyncio, and threading.py; Python/pylifecycle.c)
#: and W&B raise after another part of the program has ended.
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
#: Exceptions that the main thread raises after another part of the program has ended. The main thread can
#: also raise them for other reasons.
LOST = SecondaryException(_LOST, _WORDLESS)


def kind_of(raised: ExceptionChain) -> Kind:
    """Return the kind of an exception: failure, launcher's summary, interrupt, snippet, or ignored."""
    last = raised.exception.rpartition(".")[2]
    if last in ("KeyboardInterrupt", "SystemExit", "GeneratorExit"):
        return "interrupt"
    if raised.of_destructor or raised.setting in ("ignored", "handled", "hook"):
        # Python ignores exceptions in destructors, and the message about the destructor might be truncated.
        return "ignored"
    if raised.setting == "thread" and last == "CancelledError" and raised.message.startswith(_QUEUE_CLOSED):
        return "ignored"  # the TensorFlow thread that feeds a session fails after the session has ended
    if last in _LAUNCHER_NAMES:
        return "wrapper"
    launched = any(_LAUNCHER_FRAMES.search(frame.path.replace("\\", "/")) for frame in raised.frames)
    started_python = "python" in raised.message and ".py" in raised.message
    if last == "CalledProcessError" and (launched or started_python):
        return "wrapper"
    # The exception's name is missing because the traceback is truncated. A launcher's traceback ends with the
    # launcher's own summary.
    if not last and launched:
        return "wrapper"
    if raised.frames and all(_SNIPPET.match(frame.path) for frame in raised.frames):
        # Code that has no file is either code that the program ran, such as the output of a model, or the
        # program itself (python -c). Only the lines that follow show which case applies.
        return "snippet"
    return "failure"


_PACKAGES = lazy(r"[/\\](?:site|dist)-packages[/\\]")
_TRACKERS = lazy(
    r"[/\\](?:site|dist)-packages[/\\]"
    r"(?:wandb|swanlab|mlflow|comet_ml|clearml|neptune|tensorboard|tensorboardX|visdom)[/\\]"
)
#: Exceptions raised by a request to a process that has ended, or that ended before its socket was opened.
_GONE = frozenset(
    ("BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError", "FileNotFoundError")
)


def of_helper(raised: ExceptionChain) -> bool:
    """Return whether an experiment tracker or an output reader of ``subprocess`` raised the exception.

    All frames must belong to libraries. The outermost frame from an installed package identifies the package,
    because packages and the standard library call each other.
    """
    if not raised.frames or not all(frame.library for frame in raised.frames):
        return False
    installed = [frame for frame in raised.frames if _PACKAGES.search(frame.path)]
    if installed:
        return _TRACKERS.search(installed[0].path) is not None
    readers = (frame for frame in raised.frames if frame.name == "_readerthread")
    return raised.setting == "thread" and any(_is_in_file(frame, "subprocess.py") for frame in readers)


def of_command(raised: ExceptionChain) -> bool:
    """Return whether the program is code that has no file: ``python -c CODE``, or code from standard input.

    Start scripts run such programs to check the machine, and continue if such a program fails.
    """
    first = raised.frames[0] if raised.frames and raised.setting == "main" else None
    return first is not None and first.name == "<module>" and first.path in ("<string>", "<stdin>")


def pins_batches(raised: ExceptionChain) -> bool:
    """Return whether the exception shows that a data loader's thread for pinning memory lost a worker.

    In this case, the thread (``_utils/pin_memory.py`` in torch) fails to connect to the worker
    (``multiprocessing``).
    """
    if raised.setting != "thread" or raised.exception not in _GONE:
        return False
    names = {frame.name for frame in raised.frames}
    return "_pin_memory_loop" in names and any(_is_in_file(frame, "connection.py") for frame in raised.frames)


def _is_in_file(frame: Frame, file: str) -> bool:
    return re.split(r"[/\\]", frame.path)[-1] == file


DEEP = 3  #: minimum number of parts in the path of a folder that identifies a package
MAX_DEPTH = 25  #: maximum number of innermost frames to inspect; frames farther out are not specific


def page_of_place(raised: ExceptionChain, pages: Iterable[RulePage]) -> tuple[RulePage, Frame | None] | None:
    """Return two values: the page that names the code that raised an exception, and the frame of this code.

    A page that also specifies a message takes precedence over a page that does not. Among the remaining
    pages, the page that names the innermost frame takes precedence. Pages that name only an exception come
    last, and the returned frame is then ``None``. Return ``None`` if two pages match equally well.
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
    """Return whether an exception has the name and the message that `place` specifies.

    If the traceback is truncated, the name is unknown, and the frames are sufficient.
    """
    cut_off = not raised.exception and place.file
    named = any(f".{raised.exception}".endswith(f".{name}") for name in place.exceptions)
    if place.exceptions and not named and not cut_off:
        return False
    return not place.message or found_in(place.message, raised.message)


def _up_to_user_code(calls: list[Frame]) -> list[Frame]:
    """Return the frames from the innermost frame to the user's innermost frame."""
    outermost = next((depth for depth, call in enumerate(calls) if not call.library), len(calls))
    return calls[: outermost + 1]


def _frames_at(place: RaisedIn, calls: list[Frame]) -> list[tuple[int, Frame | None]]:
    """Return the frames that match `place`, each with its depth.

    The innermost frame has depth 0.
    """
    if not place.file:
        return [(len(calls), None)]
    looked_at = calls if place.below else calls[:1]
    return [(depth, call) for depth, call in enumerate(looked_at) if _is_at(place, call)]


def _is_at(place: RaisedIn, call: Frame) -> bool:
    path = "/" + call.path.replace("\\", "/")
    if place.file.endswith("/"):
        # A user's folder can have the same short path. A path with several folders also identifies a checkout
        # of the package.
        inside = (call.library or place.file.count("/") >= DEEP) and f"/{place.file}" in path
    else:
        inside = path.endswith(f"/{place.file}")
    return inside and (not place.functions or call.name.rpartition(".")[2] in place.functions)


def found_in(pattern: str, text: str) -> bool:
    return bool(cached_re2(pattern, encoded=False).search(text))


#: Maximum number of different exceptions in each stream, because a log can contain many tracebacks.
MAX_KINDS = 200
USER_FRAMES, LIBRARY_FRAMES = 8, 4
MAX_SOURCE = 200  #: maximum number of characters of a shown line of code

Key = tuple[str, str, str]


class CountedException(msgspec.Struct):
    """An exception in one stream, with the number of its occurrences."""

    raised: ExceptionChain  #: the first occurrence of the exception
    count: int
    last: ExceptionChain


class ExceptionTable(msgspec.Struct):
    """The exceptions in one stream."""

    seen: dict[tuple[Key, int | None], CountedException] = {}

    def add(self, raised: ExceptionChain) -> None:
        """Count an exception together with those that have the same name, location, and masked message."""
        key = _kind_key(raised), raised.rank
        known = self.seen.get(key)
        if known is not None:
            known.count += 1
            known.last = raised
            known.raised.rules |= raised.rules
        elif len(self.seen) < MAX_KINDS:
            self.seen[key] = CountedException(raised, 1, raised)

    def with_left(self, left: Iterable[ExceptionChain]) -> ExceptionTable:
        """Return a copy that also counts `left`, the exceptions that are incomplete at the stream's end."""
        copy = ExceptionTable(
            {key: CountedException(s.raised, s.count, s.last) for key, s in self.seen.items()}
        )
        for raised in left:
            copy.add(raised)
        return copy


def unknown_in(
    table: ExceptionTable, known: Collection[str], aborts: Collection[str] = ()
) -> list[CountedException]:
    """Return the failures in a stream that no rule in `known` matched.

    `aborts` are rules that match every SIGABRT, regardless of its reason. They do not explain a crash if
    the crash's message states the reason.
    """
    return [
        seen
        for seen in table.seen.values()
        if seen.raised.kind in ("failure", "snippet")
        and seen.raised.rules.isdisjoint(set(known) - set(aborts) if seen.raised.gives_reason else known)
    ]


def fold(seen: Iterable[CountedException]) -> list[UnknownException]:
    """Merge equal exceptions from several ranks into one record and sort the records by time."""
    groups: dict[Key, list[CountedException]] = {}
    for counted in seen:
        groups.setdefault(_kind_key(counted.raised), []).append(counted)
    ordered = sorted(groups.values(), key=lambda group: _by_time(earliest(s.raised.line for s in group)))
    return [_record(group) for group in ordered]


def _record(group: list[CountedException]) -> UnknownException:
    line = earliest(seen.raised.line for seen in group)
    first = next(seen.raised for seen in group if seen.raised.line is line)
    ranks = {seen.raised.line.rank if seen.raised.rank is None else seen.raised.rank for seen in group}
    line = line if first.rank is None else replace(line, rank=first.rank)
    return UnknownException(
        exception=first.exception,
        message=repeats(first.message)[0],
        ranks=sorted(rank for rank in ranks if rank is not None),
        count=sum(seen.count for seen in group),
        first=place(line, first.step),
        frames=shown_frames(first.frames),
        root=first.root,
        source=_failing_code(first),
    )


def _failing_code(raised: ExceptionChain) -> str:
    """For an exception without a message, return the line of code that raised it if the line is informative.

    A ``raise`` statement only repeats the exception. A box shows other lines of code first.
    """
    adds = not raised.message and not raised.source.startswith(("raise", "│", "|"))
    return raised.source[:MAX_SOURCE] if adds else ""


def shown_frames(frames: list[Frame]) -> list[str]:
    """Return the innermost frames of the user's code and the innermost frames of libraries, in call order."""
    users = [at for at, frame in enumerate(frames) if not frame.library]
    library = [at for at, frame in enumerate(frames) if frame.library]
    return [str(frames[at]) for at in sorted(users[-USER_FRAMES:] + library[-LIBRARY_FRAMES:])]


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
