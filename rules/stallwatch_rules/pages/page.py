"""Read a rule page: a Markdown file with the patterns, documentation, tests, and runbook of a rule.

A page consists of YAML front matter between ``---`` lines and a Markdown body. ``parse_page`` converts the
text to a ``RulePage``. If the conversion fails, ``parse_page`` raises a ``PageError`` with the file, the
line, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stallwatch_rules.pages.comparisons import parse_comparison
from stallwatch_rules.pages.fixes import parse_fix
from stallwatch_rules.pages.page_body import Body, PageError, read_body
from stallwatch_rules.pages.patterns import Fault, FragmentError, expand, pattern_fault, shared_fragments
from stallwatch_rules.records import Harm, Role
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.pages.frontmatter import FrontMatter

Status = Literal["stable", "incubating", "retired"]
#: Properties of a rule that the assessors use, in addition to the role and the harm. docs/rules.md explains
#: each property.
Tag = Literal[
    "ends-from-outside", "scheduler-decides", "time-limit", "preempted", "node-failed", "cancelled",
    "task-failed", "evicted", "follows-failure", "connecting", "any-process", "exit-status", "peer-gone",
    "awaits-peer", "flight-data", "often-handled", "tried-at-start", "start-failed", "start-refused",
    "input-missing", "interrupt", "interrupted-with-rank", "nan-loss", "nan-gradient", "fp16-overflow",
    "loss-diverged", "loss-spiked", "loss-same", "no-gradient", "policy-collapsed", "rewards-equal",
    "kl-exploded", "rate-frozen", "evaluation-same", "concluded", "sigterm", "sigkill", "killed-from-outside",
    "sigsegv", "sigbus", "sigabrt", "sigfpe", "sigill", "other-signal",
]  # fmt: skip

KEBAB = lazy(r"[a-z0-9]+(-[a-z0-9]+)*")
LONGEST = 200  #: maximum number of characters of a pattern in a page


class EmittedBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The software that prints the line, and the setting that shows the line if it is hidden by default."""

    package: str
    versions: str = ""  #: a version range such as ">=0.15.4" (empty if all versions print the line)
    module: str = ""  #: file or logger that prints the line
    level: str = ""  #: level of the line: INFO, WARNING, ERROR, exception, print, …
    ranks: str = ""  #: ranks that print the line: "all", "0", "one per node", …
    visible: str = ""  #: how to make the line visible if it is hidden by default


class RaisedIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Library code whose exceptions belong to the page (see ``failures.raised``)."""

    file: str = ""  #: path in its package of a file or of a folder (with a final slash), or "" for any file
    functions: list[str] = []  #: functions in the file (empty for any function)
    #: Class names of exceptions, optionally with their modules. An empty list means any class.
    exceptions: list[str] = []
    message: str = ""  #: regular expression that must match part of the exception's message
    #: True if exceptions that are raised in functions called by this code also count.
    below: bool = False


class ExceptionOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stack frames that distinguish exceptions with the same text (see ``diagnosis.unrelated``)."""

    words: str  #: a pattern that the text of the exception must match: "KeyError: 'optimizer'$"
    calls: str = ""  #: a pattern that at least one frame must match, such as "torch/serialization.py in load"
    never: str = ""  #: a pattern that must not match any frame


class Sections(msgspec.Struct, frozen=True):
    """The sections of a page's body in Markdown.

    Each paragraph is on one line. The ``fixes`` contain their conditions.
    """

    what: str
    why: str
    #: The fixes with their conditions, most likely first. ``fixes.fixes_for`` selects the fixes to show.
    fixes: list[str]
    harmless: str
    zh_what: str
    zh_why: str
    zh_fixes: list[str]


class _Front(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that occur in the front matter of both pages and extensions."""

    #: The rule fires if one of these patterns matches. The list is empty if the rule is inferred from facts
    #: about the run.
    patterns: list[str]
    fragments: dict[str, str] = {}  #: texts that replace ``${name}`` in the page's patterns, keyed by name
    unless: list[str] = []  #: the rule does not fire on a line that one of these patterns matches
    emitted_by: list[EmittedBy] = []
    raised_in: list[RaisedIn] = []  #: code whose exceptions belong to the page if no pattern matches


class _PageFront(_Front, frozen=True, kw_only=True):
    id: str
    title: str
    title_zh: str
    family: str
    role: Role
    harm: Harm
    status: Status
    since: str
    tags: list[Tag] = []
    when: list[str] = []  #: comparisons of captures; a match counts only if none of them fails
    requires: list[str] = []  #: at least one of these patterns must match a line of the same source and rank
    #: Patterns of the lines that a report shows together with the rule's lines, because they contain the
    #: reason.
    quotes: list[str] = []
    explains: list[str] = []  #: IDs of rules that describe consequences of this rule
    said_by: list[ExceptionOrigin] = []  #: stack frames that distinguish exceptions with the same text
    probe: str | None = None
    references: list[str] = []


class _ExtensionFront(_Front, frozen=True, kw_only=True):
    extends: str  #: ID of the page that is extended


class Extension(_ExtensionFront, frozen=True, kw_only=True):
    """A page in a pack that adds patterns and samples to another page."""

    path: str
    fires: list[str]  #: samples of one or several lines on which the rule must fire
    quiet: list[str]  #: samples on which the rule must not fire
    fires_at: list[int] = []  #: line number of the opening fence of each sample
    quiet_at: list[int] = []
    long_at: list[int] = []  #: line numbers of patterns longer than ``LONGEST``


class RulePage(_PageFront, frozen=True, kw_only=True):
    """A validated rule with its documentation."""

    sections: Sections
    path: str
    fires: list[str]  #: samples on which the rule must fire
    quiet: list[str]
    fires_at: list[int] = []
    quiet_at: list[int] = []
    long_at: list[int] = []
    extensions: list[Extension] = []  #: extensions from packs; their patterns are also in ``patterns``

    @property
    def parts(self) -> list[RulePage | Extension]:
        """The page itself and its extensions."""
        return [self, *self.extensions]

    @property
    def judged(self) -> bool:
        """True if the rule has no patterns.

        In this case, an assessor infers the rule from facts about the run.
        """
        return not self.patterns


def parse_page(text: str, path: str, *, chinese: bool = True) -> RulePage:
    """Read a page, or raise a ``PageError`` that contains all problems of the page (see ``PageError.every``).

    If `chinese` is False, the English text replaces a missing Chinese title or section.
    """
    page = parse(text, path, chinese=chinese)
    if isinstance(page, Extension):
        message = f"the page only extends the page {page.extends}"
        raise PageError(path, 1, message, f"load it together with {page.extends}")
    return page


def parse(text: str, path: str, *, quick: bool = False, chinese: bool = True) -> RulePage | Extension:
    """Read a page or an extension of a page. The errors are the same as those of ``parse_page``.

    If `quick` is True, patterns are not compiled with hyperscan. Callers use this option if they compile
    the patterns of all pages together.
    """
    # The module imports YAML, which is not needed if the pages are cached.
    from stallwatch_rules.pages import frontmatter

    matter = frontmatter.split(text, path)
    extends = isinstance(matter.values, dict) and "extends" in matter.values
    if not chinese and isinstance(matter.values, dict) and "title" in matter.values:
        matter.values.setdefault("title_zh", matter.values["title"])
    body, problems = read_body(matter.body, matter.body_line, path, chinese=chinese, samples_only=extends)
    front: _Front | None = None
    made: dict[str, list[Any]] = {"long_at": []}
    try:
        front = frontmatter.convert(matter, _ExtensionFront if extends else _PageFront, path)
    except PageError as problem:
        problems += problem.every()
    else:
        problems += _front_problems(front, matter, path)
        problems += _expand_patterns(front, matter, path, quick, made)
    problems += _fix_problems(body, path)
    if problems or front is None:
        problems.sort(key=lambda problem: problem.line)
        raise PageError.of(problems)
    values = msgspec.structs.asdict(front) | {
        "path": path,
        "fires": [sample.text for sample in body.fires],
        "quiet": [sample.text for sample in body.quiet],
        "fires_at": [sample.line for sample in body.fires],
        "quiet_at": [sample.line for sample in body.quiet],
    }
    values |= made
    if extends:
        return Extension(**values)
    values["probe"] = None if values["probe"] == "none" else values["probe"]
    sections = Sections(
        what=body.what,
        why=body.why,
        fixes=[item.text for item in body.fixes],
        harmless=body.harmless,
        zh_what=body.zh_what or body.what,
        zh_why=body.zh_why or body.why,
        zh_fixes=[item.text for item in body.zh_fixes or body.fixes],
    )
    return RulePage(**values, sections=sections)


def extended(page: RulePage, extension: Extension) -> RulePage:
    """Return a page that includes the patterns and origins of an extension."""
    return msgspec.structs.replace(
        page,
        patterns=[*page.patterns, *extension.patterns],
        unless=[*page.unless, *extension.unless],
        emitted_by=[*page.emitted_by, *extension.emitted_by],
        raised_in=[*page.raised_in, *extension.raised_in],
        extensions=[*page.extensions, extension],
    )


def _front_problems(front: _Front, matter: FrontMatter, path: str) -> Iterator[PageError]:
    """Yield problems that the types do not cover, such as an ID that differs from the name of the file."""

    def at(message: str, remedy: str, *keys: str | int) -> PageError:
        return PageError(path, matter.line_of(*keys), message, remedy)

    place = PurePath(path)
    names = [
        ("extends" if isinstance(front, _ExtensionFront) else "id", place.stem, "the file's name without .md")
    ]
    if isinstance(front, _PageFront):
        names.append(("family", place.parent.name, "the folder's name"))
    for key, expected, where in names:
        value = getattr(front, key)
        if not KEBAB.fullmatch(value):
            yield at(f"{key} {value!r} is not kebab-case", "use lowercase words joined by hyphens", key)
        elif value != expected:
            remedy = f"rename the {key}, or move the file" + (
                f" to {front.family}/{front.id}.md" if isinstance(front, _PageFront) else ""
            )
            yield at(f"{key} {value!r} is not {where} ({expected!r})", remedy, key)
    for key in ("title", "title_zh", "since") if isinstance(front, _PageFront) else ():
        if not getattr(front, key).strip():
            yield at(f"{key} is empty", f"write the {key}", key)
    for index, origin in enumerate(front.raised_in):
        keys = ("raised_in", index)
        if not origin.file and not (origin.exceptions and all("." in name for name in origin.exceptions)):
            remedy = "add file, such as torch/amp/grad_scaler.py, or give the exceptions with their modules"
            yield at("an entry of raised_in needs a file", remedy, *keys)
        if not (origin.functions or origin.exceptions or origin.message):
            message = "an entry of raised_in cannot consist of only a file"
            yield at(message, "add functions, exceptions, or a pattern for the message", *keys)
    for index, words in enumerate(getattr(front, "said_by", ())):
        if not words.calls and not words.never:
            yield at("said_by needs calls or never", "add a pattern for the calls", "said_by", index)
    for index, text in enumerate(getattr(front, "when", ())):
        if parse_comparison(text) is None:
            message = f"when[{index}] {text!r} is not a comparison of two named groups"
            yield at(message, "write a comparison such as joined > expected", "when", index)
    if not front.patterns and front.unless:
        yield at("unless needs patterns", "add patterns, or remove unless", "patterns")


def _expand_patterns(
    front: _Front, matter: FrontMatter, path: str, quick: bool, made: dict[str, list[Any]]
) -> Iterator[PageError]:
    """Insert the fragments into all patterns, store the expanded patterns in `made`, and yield problems."""
    for name in front.fragments.keys() & shared_fragments().keys():
        line = matter.line_of("fragments", name)
        yield PageError(path, line, f"a shared fragment is already named ${{{name}}}", "choose another name")
    for key in ("patterns", "requires", "unless", "quotes"):
        expanded: list[str] = []
        for index, pattern in enumerate(getattr(front, key, ())):
            line = matter.line_of(key, index)
            if len(pattern) > LONGEST:
                made["long_at"].append(line)
            texts, fault = _usable(pattern, front.fragments, quick)
            expanded += texts
            if fault is not None:
                yield PageError(path, line, f"{key}[{index}] {pattern!r}: {fault.message}", fault.remedy)
        if expanded:
            made[key] = expanded
    for key, name in (
        ("raised_in", "message"),
        ("said_by", "words"),
        ("said_by", "calls"),
        ("said_by", "never"),
    ):
        places = getattr(front, key, [])
        for index, place in enumerate(places):
            pattern = getattr(place, name)
            if not pattern:
                continue
            texts, fault = _usable(pattern, front.fragments, quick)
            places[index] = msgspec.structs.replace(place, **{name: "|".join(texts)})
            if fault is not None:
                line = matter.line_of(key, index)
                yield PageError(path, line, f"{name} {pattern!r}: {fault.message}", fault.remedy)


def _usable(pattern: str, fragments: Mapping[str, str], quick: bool) -> tuple[list[str], Fault | None]:
    """Return the expanded patterns. If one of the patterns cannot be used, also return the reason."""
    try:
        texts = expand(pattern, fragments)
    except FragmentError as error:
        return [], error.fault
    faults = (pattern_fault(text, quick=quick) for text in texts)
    return texts, next(filter(None, faults), None)


def _fix_problems(body: Body, path: str) -> Iterator[PageError]:
    for item in (*body.fixes, *body.zh_fixes):
        try:
            parse_fix(item.text)
        except ValueError as error:
            yield PageError(
                path,
                item.line,
                str(error),
                "write conditions such as {deepspeed<0.15.4; in trainer}, or remove the braces",
            )
