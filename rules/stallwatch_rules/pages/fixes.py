"""Select the parts of a rule page that apply to a run: the fixes and the text about the cause.

A fix can start with conditions in braces, separated by semicolons. The fix is shown only if no condition
fails. The following conditions exist:
* ``deepspeed<0.15.4``: The log shows a package version in this range.
* ``in verl, openrlhf``: One of these frameworks, which ``failures/frameworks.json`` lists, printed the log.
* ``tried > total``: The number that ``tried`` captured is larger than the number that ``total`` captured (see
  ``comparisons.py``).
* ``log ~ size mismatch for score``: This pattern matches a stored line of the log.
* ``finished``: Training had completed.
* ``trained``, ``not trained``: The ranks had completed a step before the line that matched, or had not.
* ``rank unknown``: The rank for which the other ranks wait is unknown, and the fix only helps to find this
  rank.
* ``else``: None of the conditional fixes directly before this fix is shown.

``stallwatch rules new`` writes placeholders that the author must replace. ``stallwatch rules check`` reports
placeholders, and reports about runs omit them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from stallwatch_rules.failures.frameworks import FRAMEWORKS
from stallwatch_rules.messages import Message, Text, bilingual, has, message
from stallwatch_rules.pages.comparisons import Comparison, parse_comparison
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage
    from stallwatch_rules.records import Primary


_Bare = Literal["finished", "trained", "not trained", "rank unknown", "else"]
# Fixes with a condition that cannot be evaluated come last, except fixes with one of these conditions.
_ANYWHERE = ("version", "rank unknown", "trained", "not trained")
_SEARCHES = ("diagnosis.fix-search", "diagnosis.did-not-come", "diagnosis.did-not-come-step")
# A pattern in a condition can contain repeats such as {0,20}.
_CONDITION = lazy(r"\{(?P<condition>(?:[^{}]|\{[\d,]+\})*)\}\s*(?P<text>.*)", re.DOTALL)


class Evidence(msgspec.Struct, frozen=True):
    """Facts about a run that determine which fixes of a page are shown."""

    #: ID of a framework in ``failures/frameworks.json``, or an empty string if no framework was recognized.
    framework: str = ""
    captures: Mapping[str, str] = {}
    finished: bool = False
    text: str = ""  #: stored lines of the log
    trained: bool = False  #: True if the ranks had completed a step before the line that matched


class Condition(msgspec.Struct, frozen=True):
    """A condition for a fix: the kind of the condition, and the values that it compares."""

    kind: Literal["version", "in", "larger", "log", _Bare]
    left: str = ""
    right: str = ""

    def holds(self, environment: Mapping[str, str], evidence: Evidence | None) -> bool | None:
        """Return whether the condition holds, or ``None`` if the result is unknown.

        Do not call this method for the condition ``else``.
        """
        if self.kind == "rank unknown":
            return None  # if the rank is known, `without_search` removes the fix
        if self.kind == "version":
            return _is_in_range(self.left, self.right, environment)
        if evidence is None:
            return None
        if self.kind == "in":
            return evidence.framework in _listed(self.right)
        if self.kind == "finished":
            return evidence.finished
        if self.kind in ("trained", "not trained"):
            return evidence.trained == (self.kind == "trained")
        if self.kind == "log":
            return re.search(self.right, evidence.text, re.MULTILINE) is not None
        return bool(Comparison(self.left, ">", self.right).holds(evidence.captures))

    def worded(self, fix: Text) -> Message:
        """Return the text of the fix, with this condition added in words."""
        if self.kind == "rank unknown":
            return message("diagnosis.fix-search", fix=fix)
        if self.kind == "version":
            return message("diagnosis.with-versions", condition=f"{self.left}{self.right}", fix=fix)
        if self.kind == "in":
            names = ", ".join(FRAMEWORKS[name].name for name in _listed(self.right))
            return message("diagnosis.fix-in", names=names, fix=fix)
        if self.kind in ("finished", "trained", "not trained"):
            return message(f"diagnosis.fix-{self.kind.replace(' ', '-')}", fix=fix)
        if self.kind == "log":
            return message("diagnosis.fix-log", pattern=self.right, fix=fix)
        return message("diagnosis.fix-larger", left=self.left, right=self.right, fix=fix)


class Fix(msgspec.Struct, frozen=True):
    """A fix and the conditions under which it helps."""

    text: str
    conditions: tuple[Condition, ...] = ()

    @property
    def otherwise(self) -> bool:
        """True if the fix starts with ``else`` and is shown only if no conditional fix before it is shown."""
        return any(condition.kind == "else" for condition in self.conditions)


def parse_fix(text: str) -> Fix:
    """Parse a fix and its conditions. Raise ``ValueError`` if the braces contain an invalid condition."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        return Fix(text)
    return Fix(found["text"], tuple(_condition(part.strip()) for part in found["condition"].split(";")))


_BARE: Mapping[str, _Bare] = {name: name for name in get_args(_Bare)}


def _condition(text: str) -> Condition:
    if text in _BARE:
        return Condition(_BARE[text])
    if text.startswith("in "):
        unknown = [name for name in _listed(text[3:]) if name not in FRAMEWORKS]
        if unknown:
            raise ValueError(f"{{{text}}} contains an unknown framework; use one of {', '.join(FRAMEWORKS)}")
        return Condition("in", right=text[3:])
    if text.startswith("log ~ "):
        try:
            re.compile(text[6:])
        except re.error as error:
            raise ValueError(f"{{{text}}} contains an invalid pattern: {error}") from error
        return Condition("log", right=text[6:])
    larger = parse_comparison(text)
    if larger is not None and larger.sign == ">":
        return Condition("larger", larger.left, larger.right)
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    if requirement is None or not requirement.specifier or requirement.extras or requirement.marker:
        raise ValueError(
            f"{{{text}}} is neither a condition on a package version nor another known condition"
        )
    return Condition("version", requirement.name, str(requirement.specifier))


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def fixes_for(page: RulePage, environment: Mapping[str, str], evidence: Evidence | None = None) -> list[Text]:
    """Return the page's fixes for these package versions (``{"deepspeed": "0.16.4"}``), most likely first.

    Placeholders and fixes with a condition that fails are omitted. If a condition cannot be evaluated, for
    example because the log does not contain the version, the condition is added to the text of the fix.
    If `evidence` is ``None``, fixes with conditions on the run come last.
    """
    fixes: list[Text] = []
    last: list[Text] = []
    shown = False  # True if one of the conditional fixes directly before the current fix is shown
    for english, chinese in zip_longest(page.sections.fixes, page.sections.zh_fixes):
        fix, other = parse_fix(english or chinese), parse_fix(chinese or english)
        if not without_placeholder(fix.text):
            continue
        text: Text = bilingual(fix.text, without_placeholder(other.text))
        conditions = [condition for condition in fix.conditions if condition.kind != "else"]
        results = [(condition, condition.holds(environment, evidence)) for condition in conditions]
        applies = all(result is not False for _, result in results)
        of_a_run = any(result is None and condition.kind not in _ANYWHERE for condition, result in results)
        if fix.otherwise:
            applies, shown = applies and not shown, False
        else:
            shown = bool(results) and (shown or all(result for _, result in results))
        for condition, result in reversed(results):
            text = text if result else condition.worded(text)
        if applies:
            (last if of_a_run else fixes).append(text)
    return fixes + last


def without_search(fixes: Sequence[Text]) -> list[Text]:
    """Remove the fixes that only help to find the rank for which the other ranks wait."""
    return [fix for fix in fixes if not has(fix, *_SEARCHES)]


def _is_in_range(package: str, versions: str, environment: Mapping[str, str]) -> bool | None:
    """Return whether a package's version is in a range, or ``None`` if the version is unknown."""
    from packaging.specifiers import SpecifierSet  # imported here, because the import is slow
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    name = canonicalize_name(package)
    version = next((known for other, known in environment.items() if canonicalize_name(other) == name), "")
    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


def with_page_words(primary: Primary, page: RulePage) -> Primary:
    """Return a primary cause with the text of its rule page in both languages.

    Version 0.1 stored the text of a cause in only one language. Text that does not occur on the page is not
    changed.
    """
    if not any(isinstance(text, str) for text in (primary.title, primary.why, *primary.fixes)):
        return primary
    words: list[Text] = [bilingual(page.title, page.title_zh), why_of(page), *fixes_for(page, {})]
    words += [fix.params["fix"] for fix in words if isinstance(fix, Message) and "fix" in fix.params]  # type: ignore[misc]
    known = {
        text: word
        for word in words
        if isinstance(word, Message)
        for text in word.params.values()
        if isinstance(text, str)
    }

    def worded(text: Text) -> Text:
        return known.get(text, text) if isinstance(text, str) else text

    return msgspec.structs.replace(
        primary,
        title=worded(primary.title),
        why=worded(primary.why),
        fixes=[worded(fix) for fix in primary.fixes],
    )


TO_BE_WRITTEN = "To be written"


def without_placeholder(text: str) -> str:
    """Return the text, or an empty string if the text is a placeholder."""
    return "" if text.startswith(TO_BE_WRITTEN) else text


def why_of(page: RulePage) -> Text:
    """Return the page's text about the cause, or an empty string if the page has only a placeholder."""
    why = without_placeholder(page.sections.why)
    return bilingual(why, without_placeholder(page.sections.zh_why)) if why else ""


def placeholder_headings(page: RulePage) -> list[str]:
    """Return the headings of the sections that still contain placeholders."""
    sections = page.sections
    fixes = [parse_fix(fix).text for fix in (*sections.fixes, *sections.zh_fixes)]
    headings = {
        "What happened": [sections.what, sections.zh_what],
        "Why": [sections.why, sections.zh_why],
        "Fix": fixes,
        "When it is harmless": [sections.harmless],
    }
    return [
        name
        for name, texts in headings.items()
        if any(text and not without_placeholder(text) for text in texts)
    ]
