"""Draft a rule page for a failure that no rule describes. An author can then improve the draft."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from stallwatch_rules.authoring.checking import check_page
from stallwatch_rules.failures.nearest import words_of
from stallwatch_rules.locale import render
from stallwatch_rules.pages.page import LONGEST, parse_page
from stallwatch_rules.pages.page_body import PageError
from stallwatch_rules.pages.patterns import compile_re2
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.text.display import shown
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import masked

MAX_PATTERN_TEXT = 160  #: maximum number of a message's characters to use in a pattern
LEAST_TEXT = 12  #: minimum number of fixed characters; shorter patterns fire on unrelated lines
MAX_NAMED = 3  #: maximum count of numbers in a pattern that become named groups
OWN_FAMILY = "own"  #: rule family to use if the log does not show which package failed

_VALUES = lazy(
    r"(?P<secret>\S*\*\*\*)"  # mask that replaces a redacted secret
    r"|(?P<url>\b[a-z][a-z0-9+]{1,9}://\S+)"
    r"|(?P<path>(?<![\w.])(?:[\\/~.]{1,3}[\w@+%=~-][\w.@+%=~-]*){2,}[\\/]?)"
    r"|(?P<hex>\b0[xX][0-9a-fA-F]+)"
    r"|(?P<id>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b)"
    r"|(?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b)"
    r"|(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<int>\d+)"
)
_FORMS = {
    "url": r"\S+",
    "path": r"\S+",
    "hex": "0x[0-9a-fA-F]+",
    "id": "[0-9a-f-]{36}",
    "ip": r"[\d.:]+",
    "secret": r"\S+",
    "float": r"[\d.eE+-]+",
}
# Level, date, time, thread, and source line at the start of glog messages. These fields vary from line to
# line.
_GLOG_LEAD = lazy(r"^\[?[IWEF]\d{4} [\d:.]+(?: +\d+)? +[^\s\]]+:\d+\]:? *")
_SPECIAL = lazy(r"([\\.^$*+?{}\[\]|()])")
_INSTALLED = lazy(r"[/\\](?:site|dist)-packages[/\\](?P<path>(?P<package>\w+)[\w./\\-]*)(?::\d+ in .*)?$")
_NAMED_PACKAGES = {"PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn"}


class DraftError(ValueError):
    """An error that prevents Stallwatch from drafting a page. The error message contains the reason."""


@dataclass(frozen=True)
class Failure:
    """The facts that are needed to draft a page for a failure that no rule describes."""

    name: str  #: name of the exception, or an empty string if the line is not an exception
    message: str
    line: str  #: redacted line of the log
    frames: list[str]


def failure_of(diagnosis: Diagnosis) -> Failure:
    """Return the first unknown exception that has a message, or else the first new line with an error.

    Raises:
        DraftError: if the log contains no such line, or if a rule already describes the failure's cause.
    """
    primary = diagnosis.primary
    if primary is not None and primary.role == "cause" and diagnosis.in_trouble:
        raise DraftError(_known(primary.rule))
    for exception in diagnosis.unknown:
        if exception.exception and fixed_text(exception.message) >= LEAST_TEXT:
            return Failure(
                exception.exception, exception.message, render(exception.first.text), exception.frames
            )
    for new in diagnosis.new_lines:
        if new.level == "error" and fixed_text(new.exemplar) >= LEAST_TEXT:
            return Failure("", _GLOG_LEAD.sub("", new.exemplar), new.exemplar, [])
    if diagnosis.unknown:
        name = diagnosis.unknown[0].exception or "the traceback"
        raise DraftError(
            f"the message of {name} is too short: a rule with so few letters would also match other failures."
            " Raise the exception with a longer message, or write a page by hand"
        )
    if primary is not None:
        raise DraftError(_known(primary.rule))
    raise DraftError("the log contains no unknown failure")


def can_be_drafted(diagnosis: Diagnosis) -> bool:
    """Return whether a page can be drafted for the failure in this diagnosis."""
    try:
        failure_of(diagnosis)
    except DraftError:
        return False
    return True


def _known(rule: str) -> str:
    return f"a rule for the failure in this log already exists: {rule} (stallwatch rules show {rule})"


def fixed_text(message: str) -> int:
    """Return the number of letters in a message that are not part of values such as names and numbers."""
    return sum(character.isalpha() for character in _VALUES.sub("", message[:MAX_PATTERN_TEXT]))


def pattern_of(failure: Failure) -> str:
    """Return a pattern that matches the line of the failure in linear time.

    Wildcards replace the values in the line. The first numbers become named groups.
    """
    patterns = (_pattern_of(failure, limit) for limit in range(MAX_PATTERN_TEXT, LEAST_TEXT, -8))
    short = (pattern for pattern in patterns if len(pattern) <= LONGEST)
    return next(short, None) or _pattern_of(failure, LEAST_TEXT)


def _pattern_of(failure: Failure, limit: int) -> str:
    message = failure.message[:limit]
    if len(message) < len(failure.message):
        message = message.rpartition(" ")[0] or message
    pieces, end, named = [], 0, 0
    for value in _VALUES.finditer(message):
        pieces.append(_escaped(message[end : value.start()]))
        end = value.end()
        if value.lastgroup == "int":
            named += 1
            pieces.append(rf"(?P<number_{named}>\d+)" if named <= MAX_NAMED else r"\d+")
        else:
            pieces.append(_FORMS[value.lastgroup or "path"])
    text = "".join([*pieces, _escaped(message[end:])]).strip()
    named_too = f"{_escaped(failure.name.rpartition('.')[2])}: {text}"
    # The name and the message of a C++ exception are on separate lines.
    return named_too if failure.name and f"{failure.name}: " in failure.line else text


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def id_of(failure: Failure, package: str) -> str:
    """Propose a rule ID from the package's name and the most significant words of the message."""
    words = list(dict.fromkeys(words_of(masked(failure.message).replace("<", " <"))))
    name = [package.lower().replace("_", "-")] if package else []
    kept = [word for word in words if word.isascii() and word not in name][:4]
    return "-".join([*name, *kept]) or "new-rule"


def origin_of(failure: Failure) -> tuple[str, str]:
    """Return the package and the file of the innermost library frame, or empty strings if there is none."""
    for frame in reversed(failure.frames):
        found = _INSTALLED.search(frame.rpartition(":")[0] if " in " in frame else frame)
        if found is not None:
            package = found["package"]
            return _NAMED_PACKAGES.get(package, package.replace("_", "-")), found["path"]
    return "", ""


def quiet_line(failure: Failure, pattern: str, lines: Iterable[str]) -> str:
    """Return a line that the rule must not match, for use as the page's negative sample.

    The result is the line most similar to the failure among the lines that the pattern does not match. If
    there is no such line, the result is an invented line with a step.
    """
    words = set(words_of(failure.message))
    expression = compile_re2(pattern, encoded=False)
    healthy = [line for line in lines if expression.search(line) is None]
    best = max(healthy, key=lambda line: (len(words & set(words_of(line))), line), default="")
    return best or "step 1 loss 0.5"


def draft(
    failure: Failure,
    pattern: str,
    *,
    rule: str,
    family: str,
    since: str,
    quiet: str,
    versions: dict[str, str],
) -> str:
    """Return the text of a rule page for a failure."""
    package, module = origin_of(failure)
    title = re.sub(r"\s+", " ", masked(failure.message)).strip()
    title = title if len(title) <= 80 else title[:80].rpartition(" ")[0] + " …"
    title = f"{failure.name.rpartition('.')[2]}: {title}" if failure.name else title
    seen = f"  # seen with {versions[package]}" if package in versions else ""
    single = pattern.replace("'", "''")  # in single-quoted text, YAML doubles each single quote
    return _PAGE.format(
        rule=rule,
        title=title,
        quoted_title=json.dumps(title, ensure_ascii=False),
        family=family,
        since=json.dumps(since),
        pattern=f"'{single}'",
        emitted_by=_EMITTED_BY.format(package=package + seen, module=module) if package else "",
        fires=failure.line,
        quiet=quiet,
    )


_EMITTED_BY = """\
emitted_by:
  - package: {package}
    module: {module}
    level: exception
"""
_PAGE = """\
---
id: {rule}
title: {quoted_title}
family: {family}
role: cause
harm: fatal
status: incubating
since: {since}
patterns:
  - {pattern}
{emitted_by}probe: none
---

# {title}

## What happened

To be written: in two to four plain sentences, what users see when a run has just failed for this reason.

## Why

To be written: the mechanism. Which code prints this message, and what went wrong before?

## Fix

1. To be written: what helps most often, concretely (the flag, the key, the line of code).
2. To be written: what else can help. Start a fix for only some versions with a condition: `{{torch<2.6}}`.

## When it is harmless

To be written, or "Never."

```log fires
{fires}
```

```log quiet
{quiet}
```
"""


@dataclass(frozen=True)
class Proposal:
    """A rule page that Stallwatch proposes to the author."""

    rule: str
    family: str
    text: str
    failure: Failure

    def problems(self, path: str) -> list[PageError]:
        """Return the reasons why the page cannot be loaded from `path`, or why its samples fail."""
        try:
            return check_page(parse_page(self.text, path, chinese=False))
        except PageError as error:
            return error.every()


def propose(reading: RunReading, *, since: str, rule: str = "", family: str = "") -> Proposal:
    """Return a proposed rule page for the unknown failure of a run.

    The page has the ID `rule`. If `rule` is empty, the page has a proposed ID.

    Raise ``DraftError`` if a rule already describes the failure, or if the run has no failure.
    """
    diagnosis = reading.diagnose()
    failure = failure_of(diagnosis)
    package, _ = origin_of(failure)
    rule, family = rule or id_of(failure, package), family or package or OWN_FAMILY
    pattern = pattern_of(failure)
    healthy = [
        shown(entry.first.text)
        for stream in reading.streams.values()
        for entry in stream.templates.entries.values()
        if entry.level != "error"
    ]
    text = draft(
        failure,
        pattern,
        rule=rule,
        family=family,
        since=since,
        quiet=quiet_line(failure, pattern, healthy),
        versions=diagnosis.environment,
    )
    return Proposal(rule, family, text, failure)
