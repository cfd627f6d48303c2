"""Determine the cause of an incident and its fixes, which chats and pages both show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stallwatch_exporter.incident import RANK_GONE, UNKNOWN_FAILURE, Incident
from stallwatch_rules.messages import Text, bilingual, message, sentences
from stallwatch_rules.pages.fixes import fixes_for, why_of, with_page_words
from stallwatch_rules.stacks.concluding import advises_stacks
from stallwatch_rules.stacks.sentences import with_title_prefix

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage
    from stallwatch_rules.records import Primary

# torchrun: SubprocessContext._poll ends all processes of its node after one failed (torch 2.13.0,
# distributed/elastic/multiprocessing/api.py). srun: -K, --kill-on-bad-exit in srun(1); without the option,
# KillOnBadExit of slurm.conf(5) decides.
_RANK_GONE_FIXES = ("rank-gone-fix-1", "rank-gone-fix-2", "rank-gone-fix-3")


class Cause(msgspec.Struct, frozen=True):
    """The title, reason and fixes of an incident's cause."""

    title: Text = ""  #: includes the rank and place of a stall; empty if the cause is unknown
    why: Text = ""
    fixes: tuple[Text, ...] = ()


def primary_of(incident: Incident) -> Primary | None:
    """Return the primary finding if it has the incident's rule; a stall can have a different cause."""
    primary = incident.primary
    return primary if primary is not None and primary.rule == incident.rule else None


def cause_of(incident: Incident, page: RulePage | None) -> Cause:
    """Return the cause from the diagnosis, with fixes for the installed versions, or from the rule `page`."""
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
    return Cause(title, why, tuple(_on_its_host(fix, incident) for fix in fixes))


def _on_its_host(fix: Text, incident: Incident) -> Text:
    """Return the fix; in a multi-host run, add the rank's host if the fix is to collect stacks."""
    if not (incident.hosts and incident.host and advises_stacks(fix)):
        return fix
    return sentences(fix, message("alerts.run-it-there", host=incident.host))
