"""Python tracebacks in one stream of lines: from the header, or the first frame, to the final exception.

A ``TracebackReader`` is fed the lines of one source and rank in order. It gives each chain of exceptions
once, when the chain has ended, with the rules that matched inside it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from stallwatch_rules.failures.raised import Frame, Mark, Raised, Setting, kind_of, setting_of
from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy

# A notebook names the exception before its calls, and writes no colon.
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
INDENT = "  "  # of a frame under its header
# Source stands deeper than a frame, so this is no source: frame and exception have lost what set them apart.
LEVEL_FINAL = lazy(r" {1,3}(?=(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failed): \S)")
GROUP_HEADER = "Exception Group Traceback"
MARGIN = lazy(r" +(?:\|(?: |$)|\+-)")  # what an exception group and its parts stand behind
BOX = "│╭╰─┌└├┃"
# In a box, source has its number before it and a variable a second box around it; this is neither.
BOXED = lazy(r"[│┃] ?(?P<final>(?:\w+\.)*[A-Z]\w*(?:Error|Exception): .*)$")
FINAL = lazy(
    r"(?:[|+] )?(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?:\((?P<inner>[\w.]+)\))?"
    r"(?::(?: (?P<message>.*))?)?$"
)
ERROR_NAME = lazy(
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Fault|Died|Aborted|Failure|Expired|NotFound|ExceptionGroup)$"
    r"|^(?:StopIteration|StopAsyncIteration|GeneratorExit|Empty|Full|Again|timeout|gaierror|herror)$"
)
_CAMEL = lazy(r"(?:.*\.)?_?[A-Z]\w*[a-z]\w*$")
CHAIN = lazy(
    r"During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception"
)
QUOTES_INNER = lazy(
    r"Original Traceback|with the following error:|_RemoteTraceback|Caught \w+ in "
    r"|in the worker environment:$"  # ray 2.55, _private/function_manager.py
)
_IGNORED = lazy(
    r"^(?:Exception ignored (?:in|on|while)\b|Error in atexit\.|Error in sys\.excepthook"
    r"|--- Logging error ---|Call stack:$)"  # under the error, logging shows who called it
    r"|\ban error occurred during closing of asynchronous generator\b"
)
# A logger's message that says how the program goes on without what failed; its traceback follows at once.
_HANDLED = lazy(
    r"(?<![A-Za-z])(?:WARN(?:ING)?|ERROR|EXCEPTION)(?![A-Za-z]).{0,300}"
    r"(?i:\b(?:retry(?:ing)?|skipp(?:ed|ing)|ignor(?:ed|ing)|fall(?:s|ing)? back|trying again)\b)"
)
# A logger's lead with this level, before a traceback's header: programs go on without what failed.
WARNED = lazy(r"(?<![A-Za-z_])WARN(?:ING)?(?![A-Za-z_])")
# Ray names the task, and the task's own frames follow; so does an actor that could not be made.
# Its colour may have lost the escape when it was copied.
REMOTE = lazy(
    r"(?:The actor died because of an error raised in its creation task, )?"
    r"(?:[^\w\s]{0,2}\[[\d;]+m)?ray::\S+ \(pid="
)
_THREAD = lazy(r"^(?:Exception in thread |Thread [A-Z]\w*:$)")  # the second is W&B's
#: Python's Lib/asyncio: tasks.py, events.py, runners.py; a logger's lead may stand before it.
_TASK = lazy(
    r"\b(?:Task|Future|_GatheringFuture) exception was never retrieved$|\bException in callback \S"
    r"|\bunhandled exception during asyncio\.run\(\) shutdown$"
)
#: The line above a traceback that says where its exception was raised.
_INTRODUCTIONS: tuple[tuple[Setting, re.Pattern[str]], ...] = (
    ("ignored", _IGNORED),
    ("thread", _THREAD),
    ("task", _TASK),
    ("handled", _HANDLED),
)
INTRODUCED = 3  #: lines within which a traceback belongs to its introduction,
HANDLED = 1  #: and to a message that says that it is handled
# The statement that raises, as tracebacks, notebooks and dumped files show it: indented, or behind a mark.
RAISE = lazy(r"[\s\d│|❱>-]+raise [\w.]+\(")
FLUSH = lazy(r"(?:raise|assert) ")
# The statement that failed, as a frame shows it: an assertion without words, an assignment, or a call whose
# value is returned may be all that tells one bare AssertionError or IndexError from another. A rich box marks
# the line with ❱.
FAILED = lazy(
    r"(?:\s+|[│┃|]\s*❱\s*\d+\s*[│┃|](?:\s*[│┃|])*\s*)"
    r"(?:assert |[\w.]+(?:, [\w.]+)* = |return [\w.()]+\s*[│┃|]?\s*$)"
)
# Lines with which another message begins, so that an exception's own text has ended.
OTHER_MESSAGE = lazy(
    r"\[[EWIF]\d{0,4} |\[20\d\d-\d\d-\d\d|[EWIF]\d{4} \d\d:|20\d\d-\d\d-\d\d|(?:WARNING|INFO|ERROR):\w"
    r"|terminate called|Killing subprocess|Exception ignored|Fatal Python error|wandb: |\{'|\{\""
    r"|srun: |slurmstepd[\w.-]*: "
    r"|(?:INFO|DEBUG) +\d\d-\d\d \d\d:|(?:INFO|DEBUG): +\S"  # vLLM's, uvicorn's
)
# Under an exception, what stands deeper is its message: no frame, no marks under source, and no bar.
MORE = lazy(r"\s+(?!File \"|[~^|+]|\d{1,3}%)(?=.*[A-Za-z]{3})(?!.*%\|)")
# The same where an exception has no message yet: what follows a logger's lead is none.
OTHER_LOGGER = lazy(
    r"(?:\[?\d\d/\d\d/\d\d|\[?\d\d:\d\d:\d\d\b"
    r"|\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b[]:|]? *[^\s:=])"
)


def introduced(text: str) -> Setting | None:
    """Return where the exception of the traceback under this line was raised, if the line says so."""
    return next((setting for setting, words in _INTRODUCTIONS if words.search(text)), None)


def frame_in(text: str) -> Frame | None:
    """The frame that a line shows."""
    found = _FRAME.match(text) if 'File "' in text else None
    if found is None and text[:1] in "│|":
        found = _BOX_FRAME.match(text)
    return Frame(found["path"], int(found["line"]), (found["name"] or "").strip()) if found else None


def notebook_frame(text: str) -> Frame | None:
    """The frame that a line of a notebook's traceback shows."""
    found = _NOTEBOOK_FRAME.match(text)
    if found is None or not (found["name"] or found["line"] or found["cell"]):
        return None
    return Frame(found["path"], int(found["line"] or found["cell"] or 0), found["name"] or "")


def is_error(name: str, adjoining: bool) -> bool:
    """Whether this names an exception; ``adjoining`` its traceback, any capitalised name does."""
    last = name.rpartition(".")[2]
    # A name in another script has no capitals to know it by.
    return bool(ERROR_NAME.search(last)) or (adjoining and (bool(_CAMEL.match(name)) or not name.isascii()))


def without(prefix: str, text: str) -> str:
    """The text without a logger's prefix like the header's, whatever its digits are."""
    if prefix and _DIGITS.sub("0", text[: len(prefix)]) == _DIGITS.sub("0", prefix):
        return text[len(prefix) :]
    return text


_DIGITS = lazy(r"\d")


MAX_FRAMES = 60
MAX_MESSAGE = 1000
FOREIGN_LINES = 30  #: lines of other writers that may stand inside a traceback before it is given up
MORE_LINES = 3  #: of a message, right under its first, that are kept
MESSAGE_LINES = 14  #: how far a message may go on after the exception's first line
BARE_LINES_AFTER = 6  #: a bare "XError: …" counts while no more than this follows it
#: Python names the place of these above them; alone they are of code that a program tried to read.
NEVER_BARE = ("SyntaxError", "IndentationError", "TabError")


class _Open(msgspec.Struct):
    """A traceback whose final exception has not come yet."""

    start: Line
    prefix: str
    introduced: Setting
    chain: Raised | None
    header: bool
    frames: list[Frame] = []
    rules: set[str] = set()
    heading: set[str] = set()
    foreign: int = 0
    adjoining: bool = False  #: whether the line before belonged to it
    source: str = ""  #: the last frame's line of code
    bare_frame: bool = False  #: whether the last frame's source line has yet to come
    named: str = ""  #: the exception, where its header names it
    group: bool = False  #: of an exception group, behind a margin
    warned: bool = False
    quoted: bool = False  #: the exception before it only tells of this one, which was raised first
    column: int = 0  #: how far all its lines are indented, or where rich's logging handler drew its box

    def unwrapped(self, text: str) -> str:
        """A line without what stands before all lines of this traceback, and without a box around it."""
        text = without(self.prefix, text)
        if self.column and text[: self.column].isspace():
            text = text[self.column :]
        if self.group:
            text = MARGIN.sub("", text, count=1)
        elif self.frames and text[:1] == " ":
            text = LEVEL_FINAL.sub("", text, count=1)
        boxed = BOXED.match(text)
        return boxed["final"].rstrip(" │┃") if boxed is not None else text


_START = Mark()


class TracebackReader:
    """Finds the exceptions in one stream. A match of a ``failures`` rule inside names it."""

    def __init__(self, failures: Collection[str] = ()) -> None:
        self._failures = frozenset(failures)
        self._open: _Open | None = None
        self._raised: Raised | None = None  # its message may go on
        self._after = 0  # lines since its first line
        self._more = 0  # of them, those right under it that are its message
        self._colon = False  # its name ends in a colon, so that its message may begin on the next line
        self._chained = False  # a chain marker came after it
        self._setting: Setting = "main"  # as a line introduced the next traceback,
        self._lines = 0  # if it begins within so many lines
        self._bare: Raised | None = None
        self._bare_after = 0

    @property
    def busy(self) -> bool:
        """Whether the next line matters whatever it says, not only with a word of ``hints.TRACEBACK``."""
        return self._open is not None or self._raised is not None or self._bare is not None or self._lines > 0

    @property
    def telling(self) -> bool:
        """Whether a traceback, or the message under it, is being told."""
        return self._open is not None or self._raised is not None

    @property
    def teardown(self) -> bool:
        """Whether the last line belongs to what a process prints while it is torn down."""
        if self._open is not None:
            return self._open.introduced in ("ignored", "handled") and self._open.adjoining
        raised = self._raised
        return raised is not None and raised.beside and raised.shows_teardown

    @property
    def handled(self) -> bool:
        """Whether the last line belongs to an exception that the program says it goes on without."""
        if self._open is not None:
            return self._open.introduced == "handled"
        return self._raised is not None and self._raised.setting == "handled"

    def feed(self, line: Line, rules: Collection[str] = (), mark: Mark = _START) -> Raised | None:
        """Take the next line and the rules that matched it; gives the chain that has ended, if one has."""
        text = line.text
        if self._raised is not None and self._raised.group and MARGIN.match(text):
            self._part(self._raised, text, rules)
            return None
        header = HEADER.search(text) if "call last" in text else None
        if header is not None:
            return self._begin(line, text[: header.start()], rules, header["named"] or "")
        if self._open is not None:
            return self._inside(self._open, line, rules, mark)
        if self._raised is not None and self._continues(text, rules):
            return None
        ended, self._raised = self._raised, None
        self._outside(line, rules, mark)
        if ended is not None and self._open is not None and REMOTE.match(ended.message):
            self._open.frames[:0] = ended.frames
            self._open.rules |= ended.rules
            return None
        return ended

    def quotes(self, text: str) -> bool:
        """Whether this line, if it comes next, is source code that is shown, not a message.

        ``raise RuntimeError("CUDA out of memory")`` under a frame says what the program may say, and the same
        words in a box of variables what one of them held.
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

    def skip(self, lines: int) -> Raised | None:
        """So many lines of the stream are left out; gives the chain that ended before or in them."""
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

    def left(self, mark: Mark = _START) -> list[Raised]:
        """What stands unfinished if the stream ended here. Changes nothing: the stream may go on."""
        if self._raised is not None:
            return [self._raised]
        if self._open is not None and (self._open.frames or self._open.chain or self._open.named):
            chain, frames = self._open.chain, list(self._open.frames)
            cut = Raised(self._open.named, "", self._open.start, mark, frames, chain.root if chain else "")
            cut.rules = self._open.rules | (chain.rules if chain else set())
            cut.setting = setting_of(frames, self._open.introduced)
            cut.kind = kind_of(cut)
            return [cut]
        return [self._bare] if self._bare is not None else []

    def _begin(self, line: Line, prefix: str, rules: Collection[str], named: str) -> Raised | None:
        previous, self._raised, self._bare = self._raised, None, None
        inner = previous is not None and (
            self._chained or bool(QUOTES_INNER.search(prefix + previous.message))
        )
        quoted = inner and not self._chained
        if self._open is not None and QUOTES_INNER.search(prefix):
            inner, previous, quoted = True, self._open.chain, False
        corner = prefix.find("╭")
        warned = WARNED.search(prefix) is not None
        if QUOTES_INNER.search(prefix) or corner >= 0 or (prefix.strip() and not prefix.strip(BOX + " ")):
            prefix = ""
        chained = previous if inner else None
        # A chain inside a destructor begins there itself: another one belongs to another process.
        ignored = chained is not None and chained.kind == "ignored" and not chained.of_destructor
        setting = self._setting if self._lines else "main"
        if chained is not None and setting == "main":
            setting = "ignored" if ignored else chained.setting if not chained.of_destructor else "main"
        self._open = _Open(line, prefix, setting, chained, header=True, adjoining=True)
        self._open.group, self._open.named = GROUP_HEADER in line.text, named
        self._open.column, self._open.warned, self._open.quoted = max(0, corner), warned, quoted
        (self._open.heading if prefix.strip() else self._open.rules).update(self._failures & set(rules))
        self._chained, self._lines = False, 0
        return None if inner else previous

    def _inside(self, begun: _Open, line: Line, rules: Collection[str], mark: Mark) -> Raised | None:
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
            if begun.bare_frame and FLUSH.match(text):  # an excerpt that lost its indentation
                begun.bare_frame, begun.source = False, text.strip()
                return None
            begun.adjoining = False
            begun.foreign += 1
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
        self, begun: _Open, final: re.Match[str], line: Line, rules: Collection[str], mark: Mark
    ) -> None:
        name, message = final["inner"] or final["name"], (final["message"] or "")[:MAX_MESSAGE]
        raised = Raised(name, message, line, mark, begun.frames, source=begun.source)
        raised.rules, raised.heading = begun.rules | set(rules), begun.heading
        if begun.chain is not None:
            raised.root = begun.chain.root
            if not raised.root and not begun.quoted:
                raised.root = f"{begun.chain.exception}: {begun.chain.message}".rstrip(": ")
            # That an exception quotes this one, as a launcher's does, does not explain this one.
            raised.rules |= begun.chain.rules & self._failures if begun.quoted else begun.chain.rules
        raised.group, raised.warned = begun.group, begun.warned
        raised.setting = setting_of(begun.frames, begun.introduced)
        raised.kind = kind_of(raised)
        self._open, self._raised, self._after, self._chained = None, raised, 0, False
        self._more, self._colon = 0, final.group().endswith(":")

    def _part(self, raised: Raised, text: str, rules: Collection[str]) -> None:
        """A line of one of a group's exceptions: the first that is no group itself is its root."""
        self._after = 0
        raised.rules.update(self._failures & set(rules))
        final = FINAL.match(MARGIN.sub("", text, count=1).rstrip()) if not raised.root else None
        name = final["name"] if final is not None else ""
        if final is not None and is_error(name, adjoining=False) and not name.endswith("ExceptionGroup"):
            raised.root = f"{name}: {final['message'] or ''}"[:MAX_MESSAGE].rstrip(": ")

    def _continues(self, text: str, rules: Collection[str]) -> bool:
        """Whether the line still belongs to the exception that was raised last."""
        raised = self._raised
        assert raised is not None
        if CHAIN.search(text):
            self._chained = True
            self._after = 0
            return True
        self._after += 1
        if self._after > MESSAGE_LINES or OTHER_MESSAGE.match(text) or introduced(text) is not None:
            return False
        if not self._chained and frame_in(text) is not None:
            return False
        if not raised.message and self._colon and text.strip(" =-*#_"):
            if OTHER_LOGGER.match(text):  # the exception has no message, and this line is another's
                return False
            raised.message = text.strip()[:MAX_MESSAGE]
        elif raised.message and self._after == self._more + 1 <= MORE_LINES and MORE.match(text):
            self._more += 1
            raised.message = f"{raised.message} {text.strip()}"[:MAX_MESSAGE]
        raised.rules.update(self._failures & set(rules))
        return True

    def _outside(self, line: Line, rules: Collection[str], mark: Mark) -> None:
        text = line.text
        if self._lines:
            self._lines -= 1
        setting = introduced(text)
        if setting is not None:
            self._setting, self._lines = setting, HANDLED if setting == "handled" else INTRODUCED
            return
        ignored = self._lines > 0 and self._setting == "ignored"
        frame = frame_in(text) if 'File "' in text else None
        if frame is not None and frame.name:
            self._bare = None
            # An excerpt that begins with a frame: what stands deeper than usual was indented as a whole.
            margin = text[: max(0, len(text) - len(text.lstrip(" ")) - len(INDENT))]
            introduced_as: Setting = "ignored" if ignored else "main"
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
            if final is not None and ERROR_NAME.search(last) and last not in NEVER_BARE:
                name = final["inner"] or final["name"]
                self._bare = Raised(name, (final["message"] or "")[:MAX_MESSAGE], line, mark)
                self._bare.rules.update(rules)
                self._bare.kind = kind_of(self._bare)
                self._bare_after = 0
