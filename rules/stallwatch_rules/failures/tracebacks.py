"""Read the Python tracebacks in the lines of one source and rank.

A traceback begins with its header or its first frame and ends with its exception. A ``TracebackReader``
reads the lines of one source and rank in order. It returns each chain of exceptions once, after the chain has
ended, together with the rules that matched inside the chain.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from stallwatch_rules.failures.raised import ExceptionChain, Frame, LinePosition, Setting, kind_of, setting_of
from stallwatch_rules.failures.templates import states_level
from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy

# A notebook prints the exception's name in the header, before the stack frames and without a colon.
HEADER = lazy(
    r"(?:Traceback|traceback) \(most recent call last\)(?::| ?─)"
    r"|(?:^|(?<=\s))(?P<named>(?:\w+\.)*[A-Z]\w+) {2,}Traceback \(most recent call last\)\s*$"
)
_FRAME = lazy(r'\s*(?:[|+] )?\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_BOX_FRAME = lazy(r"[│|] *(?P<path>[^\s:]+\.py):(?P<line>\d+) in (?P<name>[\w<>.]+)")
_NOTEBOOK_FRAME = lazy(
    r"(?:File )?(?P<path>[^\s\"']+\.pyx?|<ipython-input-[\w-]+>|(?:Cell In|Input In ?)\[\d+\])"
    r"(?::(?P<line>\d+)|, line (?P<cell>\d+))?(?:, | )?(?:in (?P<name>[\w<>.]+))?"
)
NOTEBOOK_SOURCE = lazy(r"-*> ?\d+ ")
INDENT = "  "  # indentation of a frame relative to its header
# The final exception in an excerpt in which frames and the exception have the same indentation. Source code
# is indented more than frames, and therefore more than this exception.
LEVEL_FINAL = lazy(r" {1,3}(?=(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failed): \S)")
GROUP_HEADER = "Exception Group Traceback"
MARGIN = lazy(r" +(?:\|(?: |$)|\+-)")  # margin in front of an exception group and its parts
BOX = "│╭╰─┌└├┃"
# In a box, a line of source code follows a line number, and a variable is in an inner box. The text of an
# exception has neither a line number nor an inner box.
BOXED = lazy(r"[│┃] ?(?P<final>(?:\w+\.)*[A-Z]\w*(?:Error|Exception): .*)$")
# The name of a class inside a function has the form ``train.<locals>.OddBatch``.
FINAL = lazy(
    r"(?:[|+] )?(?P<name>[^\W\d]\w*(?:\.(?:[^\W\d]\w*|<locals>))*)(?:\((?P<inner>[\w.]+)\))?"
    r"(?::(?: (?P<message>.*))?)?$"
)
ERROR_NAME = lazy(
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Fault|Died|Aborted|Failure|Expired|NotFound|ExceptionGroup)$"
    r"|^(?:StopIteration|StopAsyncIteration|GeneratorExit|Empty|Full|Again|timeout|gaierror|herror)$"
)
# Extension modules such as cv2, struct, and zlib define a single exception, named ``error``.
_OWN_NAME = lazy(r"(?:.*\.)?_?[A-Z]\w*[a-z]\w*$|(?:\w+\.)+error$")
# "Error: 0.12" is a value that an evaluation prints. In a job that was submitted from a terminal of VS Code,
# git requests the password from VS Code and continues without the password.
_NO_FAILURE = lazy(
    r"Error: (?:[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?(?: ?%)?$|connect \w+ \S*/vscode-(?:git|ipc)-\S+\.sock)"
)
CHAIN = lazy(
    r"During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception"
)
_SUMMARY = lazy(r"\s*traceback *: $")  # the row of a torchrun summary that quotes a rank's error file
QUOTES_INNER = lazy(
    r"Original Traceback|with the following error:|_RemoteTraceback|Caught \w+ in "
    r"|in the worker environment:$"  # message from Ray 2.55, _private/function_manager.py
)
_IGNORED = lazy(
    r"^(?:Exception ignored (?:in|on|while)\b|Error in atexit\."
    # Python's logging module prints the stack of its caller after the error.
    r"|--- Logging error ---|Call stack:$)"
    r"|\ban error occurred during closing of asynchronous generator\b"
)
# A logger's message that the program continues without the failed part. The traceback follows on the next
# line.
_HANDLED = lazy(
    r"(?<![A-Za-z])(?:WARN(?:ING)?|ERROR|EXCEPTION)(?![A-Za-z]).{0,300}"
    r"(?i:\b(?:retry(?:ing)?|skipp(?:ed|ing)|ignor(?:ed|ing)|fall(?:s|ing)? back|trying again)\b)"
)
# A warning level in the logger's prefix of a traceback's header. A failure that is logged as a warning did
# not end the program.
WARNED = lazy(r"(?<![A-Za-z_])WARN(?:ING)?(?![A-Za-z_])")
# Ray prints the name of the task, followed by the task's own frames. Ray prints the same text for an actor
# that failed to start. The escape character of the color codes from Ray might have been lost when the text
# was copied.
REMOTE = lazy(
    r"(?:The actor died because of an error raised in its creation task, )?"
    r"(?:[^\w\s]{0,2}\[[\d;]+m)?ray::\S+ \(pid="
)
_HOOK = lazy(r"^Error in sys\.excepthook")
_THREAD = lazy(r"^(?:Exception in thread |Thread [A-Z]\w*:$)")  # W&B prints the second form
#: Messages from Lib/asyncio in Python (tasks.py, events.py, and runners.py). A logger's prefix can precede
#: the message.
_TASK = lazy(
    r"\b(?:Task|Future|_GatheringFuture) exception was never retrieved$|\bException in callback \S"
    r"|\bunhandled exception during asyncio\.run\(\) shutdown$"
)
#: Settings of exceptions that Python prints and then ignores.
_REPORTED_ONLY: tuple[Setting, ...] = ("ignored", "hook")
#: Lines before a traceback that show in which part of the program the exception was raised.
_INTRODUCTIONS: tuple[tuple[Setting, re.Pattern[str]], ...] = (
    ("ignored", _IGNORED),
    ("hook", _HOOK),
    ("thread", _THREAD),
    ("task", _TASK),
    ("handled", _HANDLED),
)
INTRODUCED = 3  #: maximum number of lines between an introduction and its traceback
#: Maximum distance, in lines, between a logger's message about an exception and the exception's traceback.
#: Lines of other processes can be in between.
HEADED = 3
HANDLED = 1  #: maximum number of lines between a message about a handled exception and its traceback
# A ``raise`` statement as tracebacks, notebooks, and dumped files show it: indented, or after a mark.
RAISE = lazy(r"[\s\d│|❱>-]+raise [\w.]+\(")
FLUSH = lazy(r"(?:raise|assert) ")
# The statement that failed, as a frame shows it. Two AssertionErrors or IndexErrors without a message can
# differ only in this statement: an assertion, an assignment, or a returned call. In a box, Rich marks the
# statement's line with ❱.
FAILED = lazy(
    r"(?:\s+|[│┃|]\s*❱\s*\d+\s*[│┃|](?:\s*[│┃|])*\s*)"
    r"(?:assert |[\w.]+(?:, [\w.]+)* = |return [\w.()]+\s*[│┃|]?\s*$)"
)
# The start of lines that belong to a different message. Such lines end the text of the exception.
OTHER_MESSAGE = lazy(
    r"\[[EWIF]\d{0,4} |\[20\d\d-\d\d-\d\d|[EWIF]\d{4} \d\d:|20\d\d-\d\d-\d\d|(?:WARNING|INFO|ERROR):\w"
    r"|terminate called|Killing subprocess|Exception ignored|Fatal Python error|wandb: |\{'|\{\""
    r"|srun: |slurmstepd[\w.-]*: "
    r"|(?:INFO|DEBUG) +\d\d-\d\d \d\d:|(?:INFO|DEBUG): +\S"  # logger prefixes of vLLM and uvicorn
)
# Lines after an exception that are indented more than the exception are part of its message. Frames, marks
# below source code, and progress bars are not part of the message.
MORE = lazy(r"\s+(?!File \"|[~^|+]|\d{1,3}%)(?=.*[A-Za-z]{3})(?!.*%\|)")
# If the exception has no message yet, text with a logger's prefix is not its message.
OTHER_LOGGER = lazy(
    r"(?:\[?\d\d/\d\d/\d\d|\[?\d\d:\d\d:\d\d\b"
    r"|\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b[]:|]? *[^\s:=])"
)


def raised_location(text: str) -> Setting | None:
    """Return the setting of the next traceback's exception, or ``None`` if this line does not show it."""
    return next((setting for setting, words in _INTRODUCTIONS if words.search(text)), None)


def frame_in(text: str) -> Frame | None:
    """Return the stack frame in a line of a traceback, or ``None`` if the line does not contain a frame."""
    found = _FRAME.match(text) if 'File "' in text else None
    if found is None and text[:1] in "│|":
        found = _BOX_FRAME.match(text)
    return Frame(found["path"], int(found["line"]), (found["name"] or "").strip()) if found else None


def notebook_frame(text: str) -> Frame | None:
    """Return the stack frame in a line of a notebook's traceback, or ``None`` if there is none."""
    found = _NOTEBOOK_FRAME.match(text)
    if found is None or not (found["name"] or found["line"] or found["cell"]):
        return None
    return Frame(found["path"], int(found["line"] or found["cell"] or 0), found["name"] or "")


def is_error(name: str, adjoining: bool) -> bool:
    """Return whether a name can be the name of an exception.

    `adjoining` is True if the line directly follows the frames of a traceback. In this case, any
    capitalized name is accepted, and so is the name ``error`` in a module.
    """
    last = name.rpartition(".")[2]
    # In a writing system without capital letters, any name counts.
    return bool(ERROR_NAME.search(last)) or (
        adjoining and (bool(_OWN_NAME.match(name)) or not name.isascii())
    )


def _relays_remote(text: str) -> bool:
    """Return whether a line is an exception from Ray that reports the exception of a task."""
    final = FINAL.match(text.rstrip()) if "ray::" in text else None
    return final is not None and REMOTE.match(final["message"] or "") is not None


def without_prefix(prefix: str, text: str) -> str:
    """If a line's logger prefix equals the header's `prefix` except for digits, remove the logger prefix."""
    if prefix and _DIGITS.sub("0", text[: len(prefix)]) == _DIGITS.sub("0", prefix):
        return text[len(prefix) :]
    return text


def _reported_by(raised: ExceptionChain) -> ExceptionChain:
    """If `raised` is from a failed exception hook, return the exception that the hook was called to report.

    Python prints the exception that ended the program below the exception of the hook. If the log ends
    before that, nothing is known about the exception that ended the program.
    """
    return raised if raised.setting != "hook" else ExceptionChain("", "", raised.line, raised.mark)


_DIGITS = lazy(r"\d")


MAX_FRAMES = 60
MAX_MESSAGE = 1000
#: Number of foreign lines inside a traceback after which the reader abandons the traceback.
FOREIGN_LINES = 30
MORE_LINES = 3  #: maximum number of message lines directly after the exception's first line that are kept
MESSAGE_LINES = 14  #: maximum number of lines of a message after the first line of the exception
#: Maximum number of lines after a bare "XError: …" line. If more lines follow, the bare line does not
#: count.
BARE_LINES_AFTER = 6
#: Python prints the file and line of these exceptions before their names. Without a file and line, these
#: exceptions refer to code that a program tried to parse.
NEVER_BARE = ("SyntaxError", "IndentationError", "TabError")


class _Open(msgspec.Struct):
    """A traceback whose final exception has not been read yet."""

    start: Line
    prefix: str
    introduced: Setting
    chain: ExceptionChain | None
    header: bool
    frames: list[Frame] = []
    rules: set[str] = set()
    heading: set[str] = set()
    foreign: int = 0
    adjoining: bool = False  #: True if the previous line was part of the traceback
    source: str = ""  #: the last frame's line of source code
    bare_frame: bool = False  #: True if the line of source code of the last frame has not been read yet
    named: str = ""  #: name of the exception, if the header contains it
    group: bool = False  #: True if the traceback is part of an exception group, which a margin indents
    warned: bool = False
    logged: bool = False
    #: True if the traceback belongs to a failed exception hook, or to the exception that the hook reported.
    hooked: bool = False
    rank: int | None = None  #: the rank whose traceback a launcher's summary quotes
    #: True if the previous exception reports only the exception of this traceback, which was raised first.
    quoted: bool = False
    #: Indentation of the traceback's lines, or the column at which the box of the Rich log handler begins.
    column: int = 0

    def unwrapped(self, text: str) -> str:
        """Remove the traceback's logger prefix and any surrounding box from a line."""
        text = without_prefix(self.prefix, text)
        if self.column and text[: self.column].isspace():
            text = text[self.column :]
        if self.group:
            text = MARGIN.sub("", text, count=1)
        elif self.frames and text[:1] == " ":
            text = LEVEL_FINAL.sub("", text, count=1)
        boxed = BOXED.match(text)
        return boxed["final"].rstrip(" │┃") if boxed is not None else text


_START = LinePosition()


class TracebackReader:
    """A reader that finds the exceptions in the lines of one source and rank.

    For each exception, the reader also records the rules in `failures` that matched one of its lines.
    """

    def __init__(self, failures: Collection[str] = ()) -> None:
        self._failures = frozenset(failures)
        self._open: _Open | None = None
        self._raised: ExceptionChain | None = None  # the last exception; its message can continue
        self._after = 0  # number of lines after the exception's first line
        self._more = 0  # number of lines directly after the exception's first line that belong to its message
        self._column = 0  # indentation of the exception's first line, for example, in the output of pip
        # True if a colon ends the exception's name; the message can then begin on the next line.
        self._colon = False
        self._chained = False  # True if a line that links chained exceptions followed the exception
        # Setting of the next traceback, according to the line that introduces it.
        self._setting: Setting = "main"
        self._lines = 0  # number of remaining lines in which the introduced traceback must begin
        # Setting of a traceback that another process's traceback interrupted. Frames of the interrupted
        # traceback can follow.
        self._interrupted: Setting = "main"
        self._bare: ExceptionChain | None = None
        self._bare_after = 0
        self._matched = ("", 0)  # the last line that rules for failures matched, and its index in the stream
        self._matched_rules: Collection[str] = ()

    @property
    def busy(self) -> bool:
        """True if the reader needs every following line, not only lines with words of ``hints.TRACEBACK``."""
        return self._open is not None or self._raised is not None or self._bare is not None or self._lines > 0

    @property
    def in_progress(self) -> bool:
        """True if the last line was part of a traceback or of the message after it. Both can continue."""
        return self._open is not None or self._raised is not None

    @property
    def teardown(self) -> bool:
        """True if the last line was printed during the teardown of a process."""
        if self._open is not None:
            return self._open.introduced in ("ignored", "handled", "hook") and self._open.adjoining
        raised = self._raised
        return raised is not None and raised.beside and raised.shows_teardown

    @property
    def handled(self) -> bool:
        """True if the last line is part of an exception that the program reports as handled."""
        if self._open is not None:
            return self._open.introduced == "handled"
        return self._raised is not None and self._raised.setting == "handled"

    @property
    def ended_main(self) -> bool:
        """True if the last line is part of an exception that might have ended the main program.

        The traceback of such an exception begins at the top level of the program. If the program handles the
        exception and prints the traceback, the traceback begins in the function that handles the exception.
        """
        raised = self._raised if self._open is None else None
        if raised is None or raised.setting != "main" or raised.warned or not raised.frames:
            return False
        return raised.frames[0].name in ("<module>", "_run_module_as_main")

    def feed(
        self,
        line: Line,
        rules: Collection[str] = (),
        mark: LinePosition = _START,
        failed: int | None = None,
    ) -> ExceptionChain | None:
        """Read the next line. `rules` contains the rules that matched this line.

        `failed` is the rank that a launcher's summary describes, if the line is part of a summary. If an
        earlier chain ended before this line, return that chain.
        """
        text = line.text
        if self._raised is not None and self._raised.group and MARGIN.match(text):
            self._part(self._raised, text, rules)
            return None
        header = HEADER.search(text) if "call last" in text else None
        if header is not None:
            prefix = text[: header.start()]
            heading = self._matched_rules if self._is_headed(prefix, mark) else ()
            ended = self._begin(line, prefix, rules, header["named"] or "", heading)
            if self._open is not None and _SUMMARY.match(prefix):
                self._open.rank = failed
            return ended
        if found := self._failures.intersection(rules):
            self._matched, self._matched_rules = (text, mark.index), found
        if self._open is not None:
            return self._inside(self._open, line, rules, mark)
        if self._raised is not None and self._continues(text, rules):
            return None
        ended, self._raised = self._raised, None
        self._outside(line, rules, mark, rest=ended is not None and self._interrupted in _REPORTED_ONLY)
        if ended is not None and self._open is not None and REMOTE.match(ended.message):
            self._open.frames[:0] = ended.frames
            self._open.rules |= ended.rules
            return None
        return ended

    def quotes(self, text: str) -> bool:
        """Return whether `text`, if it is the next line, is quoted source code rather than a message.

        Examples are ``raise RuntimeError("CUDA out of memory")`` after a frame, and a variable's value in a
        box.
        """
        if self._raised is not None and self._raised.group and MARGIN.match(text):
            inner = MARGIN.sub("", text, count=1)
            return inner[:1].isspace() and frame_in(inner) is None
        begun = self._open
        if begun is None or ("call last" in text and HEADER.search(text)):
            return "raise " in text and RAISE.match(text) is not None
        text = begun.unwrapped(text)
        if frame_in(text) is not None:
            return False
        if (begun.bare_frame or text[:1] in BOX) and FAILED.match(text):
            return False
        if text[:1].isspace() or text[:1] in BOX:
            return begun.adjoining or begun.bare_frame or RAISE.match(text) is not None
        return begun.bare_frame and FLUSH.match(text) is not None

    def skip(self, lines: int) -> ExceptionChain | None:
        """Skip lines of the stream that are not read.

        If the current chain ended in these lines, return that chain.
        """
        self._lines = max(0, self._lines - lines)
        self._bare_after += lines
        if self._bare_after > BARE_LINES_AFTER:
            self._bare = None
        if self._open is not None:
            self._open.adjoining = self._open.bare_frame = False
            self._open.foreign += lines
            if self._open.foreign > FOREIGN_LINES:
                self._open = None
        self._after += lines
        if self._raised is None or self._after <= MESSAGE_LINES:
            return None
        ended, self._raised = self._raised, None
        return ended

    def left(self, mark: LinePosition = _START) -> list[ExceptionChain]:
        """Return the exceptions that are incomplete if the stream ends here. The reader does not change."""
        if self._raised is not None:
            return [_reported_by(self._raised)]
        begun = self._open
        if begun is not None and (begun.frames or begun.chain or begun.named or begun.hooked):
            chain, frames = begun.chain, list(begun.frames)
            cut = ExceptionChain(begun.named, "", begun.start, mark, frames, chain.root if chain else "")
            cut.rules = begun.rules | (chain.rules if chain else set())
            cut.setting = setting_of(frames, begun.introduced)
            cut.kind = kind_of(cut)
            return [_reported_by(cut)]
        return [self._bare] if self._bare is not None else []

    def _is_headed(self, prefix: str, mark: LinePosition) -> bool:
        """Return whether a logger printed a line that matches a rule shortly before it printed the traceback.

        Loggers print the message about an exception, followed by its traceback, with the same prefix.
        """
        text, index = self._matched
        same = without_prefix(prefix, text) != text and bool(prefix.strip())
        return same and mark.index - index <= HEADED

    def _begin(
        self, line: Line, prefix: str, rules: Collection[str], named: str, heading: Collection[str]
    ) -> ExceptionChain | None:
        previous, self._raised, self._bare = self._raised, None, None
        inner = previous is not None and (
            self._chained or bool(QUOTES_INNER.search(prefix + previous.message))
        )
        quoted = inner and not self._chained
        self._interrupted = self._open.introduced if self._open is not None else "main"
        if self._open is not None and QUOTES_INNER.search(prefix):
            inner, previous, quoted = True, self._open.chain, False
        corner = prefix.find("╭")
        warned, logged = WARNED.search(prefix) is not None, states_level(prefix)
        if QUOTES_INNER.search(prefix) or corner >= 0 or (prefix.strip() and not prefix.strip(BOX + " ")):
            prefix = ""
        chained = previous if inner else None
        # A chain in a destructor begins with a destructor's exception. If the chain begins with a different
        # exception, the ignored exception came from a different process.
        ignored = chained is not None and chained.kind == "ignored" and not chained.of_destructor
        setting = self._setting if self._lines else "main"
        if chained is not None and setting == "main":
            setting = "ignored" if ignored else chained.setting if not chained.of_destructor else "main"
        self._open = _Open(line, prefix, setting, chained, header=True, adjoining=True, named=named)
        self._open.group, self._open.column = GROUP_HEADER in line.text, max(0, corner)
        self._open.warned, self._open.logged, self._open.quoted = warned, logged, quoted
        self._open.hooked = "hook" in (setting, previous.setting if previous is not None else "")
        (self._open.heading if prefix.strip() else self._open.rules).update(self._failures & set(rules))
        self._open.heading.update(heading)
        self._chained, self._lines = False, 0
        return None if inner else previous

    def _inside(
        self, begun: _Open, line: Line, rules: Collection[str], mark: LinePosition
    ) -> ExceptionChain | None:
        text = begun.unwrapped(line.text)
        frame = notebook_frame(text) if begun.named else frame_in(text)
        if frame is not None:
            if len(begun.frames) == MAX_FRAMES:
                del begun.frames[MAX_FRAMES // 2]
            if begun.header and not begun.frames and not begun.column and text[:1] == " ":
                begun.column = max(0, len(text) - len(text.lstrip(" ")) - len(INDENT))
            begun.frames.append(frame)
            begun.bare_frame, begun.source = True, ""
        elif begun.named and (shown := NOTEBOOK_SOURCE.match(text)):
            begun.bare_frame = False
            begun.source = text[shown.end() :].strip() if text[:1] == "-" else begun.source
        elif not text[:1].isspace() and text[:1] not in BOX:
            final = FINAL.match(text.rstrip())
            if final is not None and is_error(final["name"], begun.adjoining):
                self._finish(begun, final, line, rules, mark)
                return None
            if begun.bare_frame and FLUSH.match(text):  # the excerpt lost its indentation
                begun.bare_frame, begun.source = False, text.strip()
                return None
            begun.adjoining = False
            begun.foreign += 1
            self._introduce(text)  # another process's traceback can interrupt this traceback
            if begun.foreign > (FOREIGN_LINES if begun.header else 2):
                self._open = None
            begun.rules.update(self._failures & set(rules))
            return None
        else:
            begun.source = text.strip() if begun.bare_frame else begun.source
            begun.bare_frame = False
        begun.adjoining = True
        begun.rules.update(self._failures & set(rules))
        return None

    def _finish(
        self, begun: _Open, final: re.Match[str], line: Line, rules: Collection[str], mark: LinePosition
    ) -> None:
        name, message = final["inner"] or final["name"], (final["message"] or "")[:MAX_MESSAGE]
        raised = ExceptionChain(name, message, line, mark, begun.frames, source=begun.source)
        raised.rules, raised.heading = begun.rules | set(rules), begun.heading
        if begun.chain is not None:
            raised.root = begun.chain.root
            if not raised.root and not begun.quoted:
                raised.root = f"{begun.chain.exception}: {begun.chain.message}".rstrip(": ")
            # A new exception that only quotes the earlier exception, such as a launcher's exception, does not
            # explain the earlier exception. Therefore, take over only the rules for failures.
            raised.rules |= begun.chain.rules & self._failures if begun.quoted else begun.chain.rules
        raised.group, raised.warned, raised.rank = begun.group, begun.warned, begun.rank
        # A collector adds its prefix to each line of a traceback, whether a logger printed it or not.
        raised.logged = begun.logged and without_prefix(begun.prefix, line.text) == line.text
        raised.setting = setting_of(begun.frames, begun.introduced)
        raised.kind = kind_of(raised)
        self._open, self._raised, self._after, self._chained = None, raised, 0, False
        self._more, self._colon = 0, final.group().endswith(":")
        self._column = begun.column + (0 if begun.prefix.strip() else len(begun.prefix))

    def _part(self, raised: ExceptionChain, text: str, rules: Collection[str]) -> None:
        """Read a line about an exception that is part of an exception group.

        The first part that is not itself a group becomes the root of the group.
        """
        self._after = 0
        raised.rules.update(self._failures & set(rules))
        final = FINAL.match(MARGIN.sub("", text, count=1).rstrip()) if not raised.root else None
        name = final["name"] if final is not None else ""
        if final is not None and is_error(name, adjoining=False) and not name.endswith("ExceptionGroup"):
            raised.root = f"{name}: {final['message'] or ''}"[:MAX_MESSAGE].rstrip(": ")

    def _continues(self, text: str, rules: Collection[str]) -> bool:
        """Return whether a line is part of the last exception, for example, a line of its message."""
        raised = self._raised
        assert raised is not None
        if CHAIN.search(text):
            self._chained = True
            self._after = 0
            return True
        self._after += 1
        if self._after > MESSAGE_LINES or OTHER_MESSAGE.match(text) or raised_location(text) is not None:
            return False
        if not self._chained and (frame_in(text) is not None or _relays_remote(text)):
            return False
        if not raised.message and self._colon and text.strip(" =-*#_"):
            # The exception has no message if a different logger printed this line.
            if OTHER_LOGGER.match(text):
                return False
            raised.message = text.strip()[:MAX_MESSAGE]
        elif (
            raised.message
            and self._after == self._more + 1 <= MORE_LINES
            and not text[: self._column].strip()
            and MORE.match(text[self._column :])
            and text.strip() != raised.source  # printed by another rank that raised the same exception
        ):
            self._more += 1
            raised.message = f"{raised.message} {text.strip()}"[:MAX_MESSAGE]
        raised.rules.update(self._failures & set(rules))
        return True

    def _introduce(self, text: str) -> bool:
        """Return whether a line introduces the next traceback. If so, store the setting that it shows."""
        self._lines = max(0, self._lines - 1)
        setting = raised_location(text)
        if setting is not None:
            self._setting, self._lines = setting, HANDLED if setting == "handled" else INTRODUCED
        return setting is not None

    def _outside(self, line: Line, rules: Collection[str], mark: LinePosition, *, rest: bool = False) -> None:
        """Read a line outside tracebacks. If `rest` is true, the line can belong to an ignored traceback."""
        text = line.text
        if self._introduce(text):
            return
        ignored = self._lines > 0 and self._setting in _REPORTED_ONLY
        frame = frame_in(text) if 'File "' in text else None
        if frame is not None and frame.name:
            self._bare = None
            # If an excerpt begins with a frame, the frame's extra indentation is a margin of all lines.
            margin = text[: max(0, len(text) - len(text.lstrip(" ")) - len(INDENT))]
            introduced_as: Setting = "ignored" if ignored or rest else "main"
            self._open = _Open(line, margin, introduced_as, None, header=False, adjoining=True)
            self._open.frames.append(frame)
            self._open.bare_frame = True
            self._open.rules.update(self._failures & set(rules))
            return
        if self._bare is not None:
            self._bare_after += 1
            self._bare.rules.update(self._failures & set(rules))
            if self._bare_after > BARE_LINES_AFTER:
                self._bare = None
        if not ignored:
            final = FINAL.match(text.rstrip())
            last = final["name"].rpartition(".")[2] if final is not None else ""
            named = ERROR_NAME.search(last) is not None and last not in NEVER_BARE
            if final is not None and named and not _NO_FAILURE.match(text):
                name = final["inner"] or final["name"]
                self._bare = ExceptionChain(name, (final["message"] or "")[:MAX_MESSAGE], line, mark)
                self._bare.rules.update(rules)
                self._bare.kind = kind_of(self._bare)
                self._bare_after = 0
