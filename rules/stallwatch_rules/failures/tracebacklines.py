"""What the lines of a Python traceback look like: headers, frames, final exceptions, and what is none."""

from __future__ import annotations

from stallwatch_rules.failures.raised import Frame
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
QUOTES_INNER = lazy(r"Original Traceback|with the following error:|_RemoteTraceback|Caught \w+ in ")
ASIDE = lazy(
    r"^(?:Exception ignored (?:in|on|while)\b|Error in atexit\.|Error in sys\.excepthook"
    r"|--- Logging error ---|Call stack:$)"  # under the error, logging shows who called it
)
# A logger's lead with this level, before a traceback's header: programs go on without what failed.
WARNED = lazy(r"(?<![A-Za-z_])WARN(?:ING)?(?![A-Za-z_])")
# Ray names the task, and the task's own frames follow; so does an actor that could not be made.
# Its colour may have lost the escape when it was copied.
REMOTE = lazy(
    r"(?:The actor died because of an error raised in its creation task, )?"
    r"(?:[^\w\s]{0,2}\[[\d;]+m)?ray::\S+ \(pid="
)
THREAD = lazy(r"^(?:Exception in thread |Thread [A-Z]\w*:$)")  # the second is W&B's
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
