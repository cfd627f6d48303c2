"""Determine an incident's cause and fixes for chat messages and for the dashboard's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stallwatch_alerts.messages.ranks import host_of_folder, remedy
from stallwatch_exporter.incident import RANK_GONE, UNKNOWN_FAILURE, Incident
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.messages import Text, bilingual, has, message, sentences
from stallwatch_rules.pages.fixes import fixes_for, why_of, with_page_words
from stallwatch_rules.stacks.concluding import advises_stacks, is_about_stacks
from stallwatch_rules.stacks.sentences import place_of, state_of, suspects, with_title_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stallwatch_rules.pages.page import RulePage
    from stallwatch_rules.records import Primary
    from stallwatch_rules.stacks.records import StallStacks

# Sources of these fixes. torchrun: after one process failed, SubprocessContext._poll ends all processes of
# the node (torch 2.13.0, distributed/elastic/multiprocessing/api.py). srun: the option -K, --kill-on-bad-exit
# in srun(1). If the option is missing, KillOnBadExit of slurm.conf(5) applies.
_RANK_GONE_FIXES = ("rank-gone-fix-1", "rank-gone-fix-2", "rank-gone-fix-3")
# States of a rank that waits neither for a service nor for storage.
_NOT_IN_A_CALL = frozenset(("stopped", "busy", "debugger", "input"))


class Cause(msgspec.Struct, frozen=True):
    """The cause of an incident: a title, the reason, and the fixes."""

    title: Text = ""  #: includes the rank and the code position of a stall; empty if the cause is unknown
    why: Text = ""
    fixes: tuple[Text, ...] = ()


def primary_of(incident: Incident) -> Primary | None:
    """Return the primary finding of the diagnosis if its rule is the incident's rule, or `None` otherwise.

    The cause of a stall can differ from the primary finding.
    """
    primary = incident.primary
    return primary if primary is not None and primary.rule == incident.rule else None


def cause_of(incident: Incident, page: RulePage | None) -> Cause:
    """Return the cause according to the primary finding. The rule's `page` supplies missing text.

    The fixes of a primary finding apply to the installed versions of the packages.
    """
    primary = primary_of(incident)
    if primary is not None and page is not None:
        primary = with_page_words(primary, page)
    title, why, fixes = (primary.title, primary.why, primary.fixes) if primary is not None else ("", "", [])
    if page is not None:
        title = title or bilingual(page.title, page.title_zh)
        why, fixes = why or why_of(page), fixes or fixes_for(page, {})
    elif primary is None and incident.rule == RANK_GONE:
        title, why = message("alerts.rank-gone"), message("alerts.rank-gone-why")
        fixes = [message(f"alerts.{fix}") for fix in _RANK_GONE_FIXES]
    elif primary is None and incident.rule == UNKNOWN_FAILURE:
        why, fixes = message("alerts.unknown-why"), incident.next_steps
    if incident.kind == "stall" and incident.stacks is not None and title:
        title = with_title_prefix(title, incident.stacks)
    fixes = [_on_its_host(fix, incident) for fix in fixes]
    if incident.stacks is not None:
        left = _without_places(fixes, incident.stacks)
        is_about_place = incident.rule == SILENT_HANG or (incident.stacks.odd and len(left) < len(fixes))
        advice = _first_advice(incident, incident.stacks) if is_about_place else ""
        fixes = [advice, *left] if advice else left
    return Cause(title, why, tuple(fixes))


def is_located(stacks: StallStacks) -> bool:
    """Return whether the code position of every living rank is known.

    If all positions are known, advice to look for a position is unnecessary.
    """
    return bool(stacks.groups) and all(g.kind != "unknown" or g.condition != "alive" for g in stacks.groups)


def _without_places(fixes: Sequence[Text], stacks: StallStacks) -> list[Text]:
    """Remove fixes that describe the ranks of one host, because the message describes all ranks.

    If all positions are known, also remove fixes that collect stacks.
    """
    known = is_located(stacks)
    fixes = [fix for fix in fixes if not (is_about_stacks(fix) or (known and advises_stacks(fix)))]
    if {state_of(group) for group in suspects(stacks)} & _NOT_IN_A_CALL:
        fixes = [fix for fix in fixes if not has(fix, "diagnosis.alone-fix")]
    return fixes


def _first_advice(incident: Incident, stacks: StallStacks) -> Text:
    """Return text that states where the blocking ranks are and what to do. Unknown facts are omitted."""
    advice = remedy(stacks, host=host_of_folder(incident), is_over=incident.run_is_over)
    if place := place_of(stacks):
        return message("alerts.look-at", place=place, advice=advice)
    return advice


def _on_its_host(fix: Text, incident: Incident) -> Text:
    """Return the fix. If the fix collects stacks in a multi-host run, add the rank's host."""
    if not (incident.hosts and incident.host and advises_stacks(fix)):
        return fix
    return sentences(fix, message("alerts.run-it-there", host=incident.host))
