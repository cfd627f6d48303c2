"""A diagnosis in its reader's language: what a rule's page says, and what was found out about this run.

A run's agent writes its diagnosis once, in its own language. The page's words are there in the reader's, too;
what the agent put before them (the rank that did not come, the place where it is) must not be lost with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stallwatch_rules.diagnosis.missing import ranks_named
from stallwatch_rules.pages.fixes import fixes_for, why_of
from stallwatch_rules.records import Primary
from stallwatch_rules.stacks.concluding import TAKE_STACKS
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.words import sentence
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.retelling import retold
from stallwatch_rules.text.sentences import say

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

_CHINESE = lazy(r"[\u4e00-\u9fff]")
_LANGUAGES = ("en", "zh")


def told_in(primary: Primary, page: RulePage | None, language: str, stacks: StallStacks | None) -> Primary:
    """The diagnosis with title, reason and fixes in this language, as far as the page is written in it.

    Args:
        primary: as the agent wrote it.
        page: the page of its rule; without one it stays as it is.
        language: the reader's, ``en`` or ``zh``.
        stacks: where the ranks were at the run's stall, for the sentence of that in the fixes.
    """
    if page is None or speaks(primary, language):
        return primary
    fixes = fixes_for(page, {}, language) or fixes_for(page, {}, "en")
    own = [(at, _own(fix, language, stacks)) for at, fix in enumerate(primary.fixes)]
    if any(told for _, told in own) and not any(TAKE_STACKS in fix for fix in primary.fixes):
        fixes = [fix for fix in fixes if TAKE_STACKS not in fix]  # they were taken
    for at, told in own:
        if told:
            fixes.insert(at, told)
    return msgspec.structs.replace(
        primary, title=_title(primary, page, language), why=why_of(page, language), fixes=fixes
    )


def speaks(primary: Primary, language: str) -> bool:
    """Whether the diagnosis is in this language."""
    return bool(_CHINESE.search(primary.title + primary.why)) == language.startswith("zh")


def _title(primary: Primary, page: RulePage, language: str) -> str:
    """What the diagnosis itself was titled, else the page's title, with the ranks that it put behind it."""
    for spoken in _LANGUAGES:
        doubt = say("perhaps", spoken, title="")
        if primary.title.startswith(doubt):
            bare = msgspec.structs.replace(primary, title=primary.title.removeprefix(doubt))
            return say("perhaps", language, title=_title(bare, page, language))
    own = retold(primary.title, language)
    if own != primary.title:
        return own
    titled = (language.startswith("zh") and page.title_zh) or page.title
    for known in filter(None, (page.title, page.title_zh)):
        for spoken in _LANGUAGES:
            start = ranks_named(known, "", spoken)
            if primary.title.startswith(start):
                return ranks_named(titled, primary.title.removeprefix(start), language)
    return titled


def _own(fix: str, language: str, stacks: StallStacks | None) -> str:
    """A sentence of the diagnosis about this run, in this language; empty for the page's advice."""
    for spoken in _LANGUAGES:
        look, more = say("look-there", spoken, told=""), say("all-stacks", spoken, file="\0")
        before, after = more.split("\0")
        told, found, rest = fix.partition(f" {before}")
        where = sentence(stacks, spoken) if stacks is not None else ""
        place = told.removeprefix(look)
        if place == told and not (where and place == where):
            continue
        here = sentence(stacks, language) if stacks is not None and place == where else place
        told = say("look-there", language, told=here) if place != told else here
        file = rest.removesuffix(after)
        return f"{told} {say('all-stacks', language, file=file)}" if found else told
    again = retold(fix, language)
    return again if again != fix else ""
