"""Read failures without a Python traceback, such as C++ exceptions, fatal signals, and error-file entries.

A ``CrashReader`` reads the lines of one source and rank in order. The ``TracebackReader`` reads the same
lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec

from stallwatch_rules.failures.raised import ExceptionChain, Frame, LinePosition, kind_of
from stallwatch_rules.failures.tracebacks import MAX_FRAMES, MAX_MESSAGE, frame_in
from stallwatch_rules.records import Line
from stallwatch_rules.text.foreign_json import NOT_JSON
from stallwatch_rules.text.lazy import lazy

BLOCK_LINES = 80  #: maximum number of lines in the stack trace of a crash
STRAY_LINES = 3  #: number of consecutive lines outside a stack trace after which a crash report ends

#: Signals that request a graceful end. Reports from Ray contain these names.
GRACEFUL_SIGNALS = ("SIGTERM", "SIGINT")

#: The first line of every crash contains at least one of these words. Many lines are searched for all words
#: at once.
WORDS = (
    "terminate called",
    "libc++abi",
    "Fatal Python error",
    "*** SIG",
    "*** Process received signal",
    "Check failed",
    "[PID:",
    "py_callstack",
    "Assertion `",
    "attempt to ",
    "ERROR: LoadError:",
    " target '",
    " F tensorflow/",
    " F external/",
    "lua: ",
    "luajit: ",
    "lua5.",
    "Error in ",
    "Error using ",
    "' panicked at ",
    "panic: ",
    'Exception in thread "',
)

# If several processes write this message into one line, the last name is complete.
_THROWN = lazy(r"^.*terminate called after throwing an instance of '(?P<name>[^']+)'")
_THROWN_LIBCXX = lazy(
    r"(?:libc\+\+abi: )?terminating (?:due to|with) uncaught exception of type (?P<name>[\w:]+): ?(?P<m>.*)"
)
_PLAIN = lazy(r"terminate called (?P<m>without an active exception|recursively)")
_FATAL = lazy(r"(?P<name>Fatal Python error): (?P<m>.+)")
_SIGNAL = lazy(r"\*\*\* (?P<name>SIG[A-Z]+)\b(?: \(@0x[0-9a-f]+\))? received\b")
_MPI = lazy(r"\*\*\* Process received signal \*\*\*")
_CHECK = lazy(r"(?:^|\s)F(?:\d{4})? .{0,300}?\] (?P<name>Check failed): (?P<m>.+)")
#: A failed check in Ray (ray 2.60, src/ray/util/logging.cc). A message of level C ends the process.
_RAY_CHECK = lazy(
    r"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} C \d{1,8} \d{1,8}\] .{0,300}?"
    r"(?P<name>Check failed): (?P<m>.+)"
)
#: Messages from TensorFlow and XLA. A message of level F ends the process.
_FATAL_LEVEL = lazy(r" (?P<name>F) (?:tensorflow|external)/\S{1,200}:\d+\] (?P<m>.+)")
_ASCEND = lazy(r"^(?P<name>E[A-Z0-9]\d{4}): \[PID: ?\d+\] \S+ (?P<m>.+)")
#: A failed assertion as glibc prints it (assert/assert.c). CUDA assertions contain other quotation marks, and
#: a rule matches these assertions.
_ASSERT = lazy(r"^[\w.-]+: [^:]{1,200}:\d+: .{1,200}: (?P<name>Assertion) (?P<m>`.{1,300}' failed)\.$")
#: Error messages from Lua (torch 7) and Julia.
_LUA = lazy(r"^\S{0,200}lua(?:jit)?[\w.-]{0,9}: \S{1,200}:\d+: (?P<m>(?P<name>attempt to \w+) .{1,200})$")
_LUA_ERROR = lazy(r"^\S{0,200}(?P<name>lua)(?:jit)?[\w.-]{0,9}: \S{1,200}:\d+: ?(?P<m>.{0,300})$")
_JULIA = lazy(r"^ERROR: (?P<name>LoadError): (?P<m>.{1,300})$")
#: An error message from Hydra, which omits the traceback (hydra-core 1.3,
#: _internal/instantiate/_instantiate2.py).
_HYDRA = lazy(r"^(?P<name>Error (?:in call to|locating) target) (?P<m>'.{1,300})$")
#: Error messages from R, MATLAB, Rust, Go, and Java. For R, MATLAB, and Rust, the text can be on the next
#: line. R prints the same message for an error that a script handles. After an unhandled error, R also prints
#: `_R_END`.
_R = lazy(r"^(?P<name>Error in [\w.:$]{1,80}\(.{0,300}\)) : ?(?P<m>.{0,300})$")
_R_END = "Execution halted"
_MATLAB = lazy(r"^(?P<name>Error using [\w./>]{1,80})(?: \(line \d+\))?$")
_RUST = lazy(
    r"^thread '(?P<thread>[^']{0,80})' (?:\(\d+\) )?(?P<name>panicked)"
    r" at (?P<path>\S{1,200}?):(?P<line>\d+):\d+:$"
)
_GO = lazy(r"^(?P<name>panic): (?P<m>\S.{0,300})$")
_JAVA = lazy(
    r'^Exception in thread "(?P<thread>[^"]{1,80})" (?P<name>(?:[\w$]+\.)+[\w$]+)(?:: (?P<m>.{0,300}))?$'
)
_BEGINNINGS = (
    *(_THROWN, _THROWN_LIBCXX, _PLAIN, _FATAL, _SIGNAL, _MPI, _CHECK, _RAY_CHECK, _FATAL_LEVEL, _ASCEND),
    *(_ASSERT, _LUA, _LUA_ERROR, _JULIA, _HYDRA, _R, _MATLAB, _RUST, _GO, _JAVA),
)
_BELOW = (_LUA_ERROR, _R, _MATLAB, _RUST)
#: Output of a child process or an embedded interpreter. A Python exception can quote this output in its
#: message.
_QUOTED = (_ASCEND, _LUA, _LUA_ERROR, _JULIA, _R, _MATLAB, _RUST, _GO)

_WHAT = lazy(r"\s*what\(\): +(?P<m>.*)")
_MPI_SIGNAL = lazy(r"(?:\[[\w.:-]+\] )?Signal: (?P<m>.+)")
_PYTHON_FRAME = lazy(r'\s*File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
_NATIVE_FRAME = lazy(
    r"\s*(?:frame )?#(?P<number>\d+):? +(?:0x[0-9a-f]+ (?:in )?)?(?P<name>.+?)"
    r"(?: \+ 0x[0-9a-f]+)?(?: \(0x[0-9a-f]+ in (?P<path>[^)]+)\)| (?:at|from) (?P<at>\S+))?$"
)
#: Stack frames of Lua, Julia, Go, Java, and MATLAB. MATLAB prints the name of a function's file without the
#: suffix.
_FOREIGN_FRAMES = (
    lazy(r"\s+(?:@ \S+ )?(?P<path>[^\s:]+\.(?:lua|jl|go)):(?P<line>\d+)(?:: in (?P<name>.+)| .*)?$"),
    lazy(r"\s+at (?P<name>[\w.$<>]+)\((?P<path>\w+\.(?:java|kt|scala)):(?P<line>\d+)\)$"),
    lazy(r"Error in (?P<path>[\w./>]+) \(line (?P<line>\d+)\)$"),
)
_STACK = lazy(
    r"\s*(?:Exception raised from|C\+\+ CapturedTraceback|Current thread 0x|Thread 0x|Extension modules:"
    r"|\[[\w.:-]+\] (?:\[ ?\d+\]|\*\*\* |Signal|Failing|Associated)|@ +0x|PC: @|Python runtime state"
    r"|<no Python frame>|Solution:|TraceBack \(most|\s{4,}\S)"
)


def stated_reason(text: str) -> str:
    """Return the message in the second line of a C++ exception, or an empty string for other lines."""
    found = _WHAT.match(text) if "what():" in text else None
    return found["m"][:MAX_MESSAGE] if found is not None else ""


class CrashReader:
    """A reader that finds the crashes in the lines of one source and rank."""

    def __init__(self) -> None:
        self._open: ExceptionChain | None = None
        self._lines = 0  # number of lines read since the crash began
        self._stray = 0
        self._threads = 0  # number of threads whose stacks the crash report contains
        self._below = False  # True if the crash's message is on the next line that is not blank

    @property
    def busy(self) -> bool:
        """True if the reader needs every following line because a crash has begun but has not ended."""
        return self._open is not None

    def feed(
        self, line: Line, rules: Collection[str], mark: LinePosition, *, in_message: bool = False
    ) -> ExceptionChain | None:
        """Read the next line. `rules` contains the rules that matched this line.

        If an earlier crash ended before this line, return that crash.

        `in_message` is True if the line can be part of the message of a Python exception. Such a message
        can quote a crash report (see `_QUOTED`).
        """
        ended: ExceptionChain | None = None
        if self._open is not None:
            if self._continues(self._open, line.text):
                self._open.rules.update(rules)
                return None
            ended, self._open = self._open, None
        self._open, beginning = _beginning_in(line, mark, in_message)
        if self._open is not None:
            self._open.rules.update(rules)
            self._lines = self._stray = self._threads = 0
            self._below = beginning in _BELOW and not self._open.message
        return ended

    def skip(self, lines: int) -> ExceptionChain | None:
        """Skip lines of the stream that are not read.

        If the current crash ended in these lines, return that crash.
        """
        self._stray += lines
        if self._open is None or self._stray <= STRAY_LINES:
            return None
        ended, self._open = self._open, None
        return ended

    def left(self) -> list[ExceptionChain]:
        """Return a list that contains the unfinished crash. The list is empty if no crash is unfinished."""
        return [self._open] if self._open is not None else []

    def _continues(self, crash: ExceptionChain, text: str) -> bool:
        self._lines += 1
        if self._lines > BLOCK_LINES or not crash.native:
            return False
        if text.strip() == _R_END:
            crash.kind = "failure"
            return True
        reason = _WHAT.match(text) or (_MPI_SIGNAL.match(text) if crash.exception == "signal" else None)
        if reason is not None:
            crash.message = crash.message or reason["m"][:MAX_MESSAGE]
            self._stray = 0
            return True
        if self._below and text.strip():
            crash.message = f"{crash.message} {text.strip()}".strip()[:MAX_MESSAGE]
            # Before the message, torch 7 prints the name of a network module.
            self._below = text.startswith("In ")
            return True
        if "Current thread 0x" in text:  # faulthandler lists the threads in the order in which they started
            crash.frames.clear()
            self._threads = 1
        elif "hread 0x" in text:
            self._threads += 1
        if self._frame(crash, text) or _STACK.match(text):
            self._stray = 0
            return True
        if any(beginning.search(text) for beginning in _BEGINNINGS):
            return False
        self._stray += 1
        return self._stray <= STRAY_LINES

    def _frame(self, crash: ExceptionChain, text: str) -> bool:
        """Add the stack frame that a line shows to the crash. The innermost frame comes last.

        Keep only the frames of the first thread. Return False if the line does not contain a frame.
        """
        python = _PYTHON_FRAME.match(text)
        native = _NATIVE_FRAME.match(text) if python is None and "#" in text else None
        if python is not None:
            frame = Frame(python["path"], int(python["line"]), python["name"].strip())
        elif native is not None:
            frame = Frame(native["path"] or native["at"] or "C++", 0, native["name"].partition("(")[0][:120])
        else:
            found = next((match for pattern in _FOREIGN_FRAMES if (match := pattern.match(text))), None)
            if found is None:
                return False
            frame = Frame(found["path"], int(found["line"]), found.groupdict().get("name") or "")
        if self._threads <= 1 and len(crash.frames) < MAX_FRAMES:
            crash.frames.insert(0, frame)
        return True


def _beginning_in(
    line: Line, mark: LinePosition, in_message: bool
) -> tuple[ExceptionChain | None, re.Pattern[str] | None]:
    """Return two values: the crash that begins in a line, and the pattern that matched.

    Both are ``None`` if no crash begins in the line.
    """
    if not any(word in line.text for word in WORDS):
        return None, None
    if "py_callstack" in line.text:
        return read_error_file(line, mark), None
    for beginning in _BEGINNINGS:
        found = beginning.search(line.text)
        if found is not None and not (in_message and beginning in _QUOTED):
            parts = found.groupdict()
            name = parts.get("name") or ("terminate called" if beginning is _PLAIN else "signal")
            raised = ExceptionChain(name, (parts.get("m") or "").strip()[:MAX_MESSAGE], line, mark)
            raised.native = True
            if "path" in parts:
                raised.frames.append(Frame(parts["path"], int(parts["line"]), ""))
            if name in GRACEFUL_SIGNALS:
                raised.kind = "interrupt"
            elif beginning is _R or parts.get("thread", "main") != "main":
                # The program can handle the exception or continue without the thread.
                raised.kind = "ignored"
            return raised, beginning
    return None, None


_NAME = lazy(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.DOTALL)


def read_error_file(line: Line, mark: LinePosition) -> ExceptionChain | None:
    """Return the exception in a line of an error file, or ``None`` if the line has a different form.

    The form is ``{"message": {"message": "…", "extraInfo": {"py_callstack": "…"}}}``.
    """
    try:
        record = msgspec.json.decode(line.text)
    except NOT_JSON:  # the line is truncated, or it does not come from an error file
        return None
    inner = _value_of(record, "message")
    summary = _value_of(inner, "message")
    stack = _value_of(_value_of(inner, "extraInfo"), "py_callstack")
    found = _NAME.match(summary.strip()) if isinstance(summary, str) else None
    if found is None or not isinstance(stack, str):
        return None
    frames = [frame for text in stack.splitlines() if (frame := frame_in(text)) is not None]
    first_line = (found["message"] or "").strip().partition("\n")[0]
    raised = ExceptionChain(found["name"], first_line[:MAX_MESSAGE], line, mark, frames)
    raised.kind = kind_of(raised)
    return raised


def _value_of(record: Any, key: str) -> Any:
    return record.get(key) if isinstance(record, dict) else None
