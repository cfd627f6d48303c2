"""What a page tells its readers: the fixes that fit their versions, its cause, and nothing unwritten.

``{deepspeed<0.15.4} Upgrade: …`` is shown only if it can apply. ``stallwatch rules new`` leaves placeholders
for the author to write: the check reports them, and no report shows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from stallwatch_rules.messages import Message, Text, bilingual, message
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from stallwatch_rules.pages.page import RulePage
    from stallwatch_rules.records import Primary


_CONDITION = lazy(r"\{(?P<condition>[^{}]*)\}\s*(?P<text>.*)", re.DOTALL)


class Fix(msgspec.Struct, frozen=True):
    """One fix; with a condition it is for some versions of one package."""

    text: str
    package: str | None = None
    specifier: SpecifierSet | None = None


def parse_fix(text: str) -> Fix:
    """Take the leading condition off a fix; ``ValueError`` where the braces hold none."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        return Fix(text)
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(found["condition"])
    except InvalidRequirement:
        requirement = None
    if requirement is None or not requirement.specifier or requirement.extras or requirement.marker:
        raise ValueError(f"{{{found['condition']}}} is not a condition on a package's version")
    return Fix(found["text"], requirement.name, requirement.specifier)


def fixes_for(page: RulePage, environment: Mapping[str, str]) -> list[Text]:
    """Return the page's fixes for these package versions (``{"deepspeed": "0.16.4"}``), most likely first.

    A fix whose condition is known to be false is left out. A condition that cannot be decided, because the
    log does not tell the version, becomes words. What is still to be written is left out.
    """
    fixes: list[Text] = []
    for english, chinese in zip_longest(page.sections.fixes, page.sections.zh_fixes):
        fix, other = parse_fix(english or chinese), parse_fix(chinese or english)
        if not written(fix.text):
            continue
        text = bilingual(fix.text, written(other.text))
        if fix.package is None or fix.specifier is None:
            fixes.append(text)
            continue
        holds = _holds(fix.specifier, _version_of(fix.package, environment))
        if holds:
            fixes.append(text)
        elif holds is None:
            condition = f"{fix.package}{fix.specifier}"
            fixes.append(message("diagnosis.with-versions", condition=condition, fix=text))
    return fixes


def _version_of(package: str, environment: Mapping[str, str]) -> str | None:
    from packaging.utils import canonicalize_name  # takes longer to load than most pages to read

    name = canonicalize_name(package)
    return next((version for one, version in environment.items() if canonicalize_name(one) == name), None)


def with_page_words(primary: Primary, page: RulePage) -> Primary:
    """Return a diagnosis that version 0.1 stored with its page's words in both languages."""
    if not any(isinstance(text, str) for text in (primary.title, primary.why, *primary.fixes)):
        return primary
    words: list[Text] = [bilingual(page.title, page.title_zh), why_of(page), *fixes_for(page, {})]
    known = {
        text: one
        for one in words
        if isinstance(one, Message)
        for text in one.params.values()
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


def _holds(specifier: SpecifierSet, version: str | None) -> bool | None:
    from packaging.version import InvalidVersion, Version

    try:
        known = Version(version) if version else None
    except InvalidVersion:
        known = None
    return None if known is None else specifier.contains(known, prereleases=True)


TO_BE_WRITTEN = "To be written"


def written(text: str) -> str:
    """The text; nothing where it still is a draft's placeholder."""
    return "" if text.startswith(TO_BE_WRITTEN) else text


def why_of(page: RulePage) -> Text:
    """Return what the page says of the cause, for a report; nothing if that is still to be written."""
    why = written(page.sections.why)
    return bilingual(why, written(page.sections.zh_why)) if why else ""


def unwritten(page: RulePage) -> list[str]:
    """The headings of the page's sections that are still placeholders."""
    sections = page.sections
    fixes = [parse_fix(fix).text for fix in (*sections.fixes, *sections.zh_fixes)]
    headings = {
        "What happened": [sections.what, sections.zh_what],
        "Why": [sections.why, sections.zh_why],
        "Fix": fixes,
        "When it is harmless": [sections.harmless],
    }
    return [name for name, texts in headings.items() if any(text and not written(text) for text in texts)]
