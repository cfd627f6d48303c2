"""Decide which stalls, findings, and endings of a run become incidents.

The module reads no logs and no clocks. To limit noise, notices, harmless findings, launchers' summaries,
and repeated errors of other ranks do not open incidents while the run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stallwatch_exporter.incident import UNKNOWN_FAILURE, Incident, Resolution, Severity, is_standstill
from stallwatch_exporter.watching.incidents import IncidentManager, IncidentUpdate
from stallwatch_exporter.watching.lost_ranks import LostRankAlarms
from stallwatch_exporter.watching.stall import StallState
from stallwatch_rules.diagnosis.awaited import is_of_peers
from stallwatch_rules.diagnosis.exits import FROM_OUTSIDE, SIGKILL
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.endings import Ending
from stallwatch_rules.failures.raised import own_frame
from stallwatch_rules.judgements.concerns import CHECKPOINT, SEEN
from stallwatch_rules.judgements.conclusions import LOSS_NAN, SILENT_HANG, STANDSTILLS, STEP_TIME, STRAGGLER
from stallwatch_rules.judgements.slow_hosts import WINDOWS
from stallwatch_rules.locale import contains_message
from stallwatch_rules.messages import Text
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis, Finding, Match, Phase, Primary, Progress, UnknownException
from stallwatch_rules.report.phrases import exception_in_short, next_steps
from stallwatch_rules.stacks.concluding import background_rules
from stallwatch_rules.stacks.records import StallStacks

#: Seconds to wait for the other lines of a failure and for the end of the run, so that a crash causes only
#: one notification.
GATHER_SECONDS = 2.0
#: Seconds to wait for the end of the run after a rank failed, because launchers take some seconds to end the
#: other ranks and themselves.
ENDING_SECONDS = 10.0
_ENDING_AT_MOST = 30.0  # Maximum wait in seconds. Each further failure of a restarted rank prolongs the wait.
#: Seconds to wait, by rule. A loss that is not finite is fatal only if no finite loss follows in this time.
#: Several such losses in a row cause a warning before this time has passed.
_HELD_SECONDS = {LOSS_NAN: 20.0}


class Pending:
    """The first match of each rule, kept until the match is due to be reported."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, Match]] = {}

    def __contains__(self, rule: str) -> bool:
        return rule in self._until

    def add(self, match: Match, now: float, *, held: bool = False) -> None:
        """Add a match of a rule. If `held` is true, the match is kept for the time in ``_HELD_SECONDS``."""
        seconds = _HELD_SECONDS.get(match.rule, GATHER_SECONDS) if held else GATHER_SECONDS
        self._until.setdefault(match.rule, (now + seconds, match))

    def due_in(self, now: float, *, ending: bool) -> float:
        """Return the number of seconds until a match is due, or infinity if there is no match.

        If `ending` is true, matches are due later, because the end of the run is expected.
        """
        left = (self._left(until, now, ending) for until, _ in self._until.values())
        return min(left, default=float("inf"))

    def take(self, now: float, *, ending: bool, everything: bool = False) -> list[tuple[str, Match]]:
        """Remove and return the due matches (all matches if `everything` is true), each with its rule."""
        due = [
            (rule, match)
            for rule, (until, match) in self._until.items()
            if everything or self._left(until, now, ending) <= 0
        ]
        for rule, _ in due:
            del self._until[rule]
        return due

    def clear(self) -> None:
        """Remove all matches."""
        self._until.clear()

    def _left(self, until: float, now: float, ending: bool) -> float:
        return max(0.0, until - now + (_ENDING_AT_MOST - GATHER_SECONDS if ending else 0.0))


_HARMFUL = ("fatal", "degrading")
_DEGRADING_AFTER = 2  # consecutive harmful evaluations before a report, so that one slow step is ignored
_FINE_AFTER = 6
_COMPARED_STEPS = WINDOWS[1]  # maximum steps to wait for a slow rank before an alarm about slow steps
_COMPARED_SECONDS = 60.0  # maximum number of seconds to wait for a slow rank
#: Resolution by kind of ending. Every other kind is a failure, which has its own notification.
RESOLUTIONS: Mapping[str, Resolution] = {"finished": "run-finished", "interrupted": "run-stopped"}


class Alarms:
    """Open and resolve the incidents of one run in `book`, the incident manager."""

    def __init__(self, book: IncidentManager, catalogue: Catalogue) -> None:
        self._book = book
        self._catalogue = catalogue
        # Maps a rule to the rule that replaces it when memory readings are known.
        self._reported_as = {catalogue.rule_tagged(SIGKILL): catalogue.rule_tagged(FROM_OUTSIDE)}
        #: Returns whether steps are slower than before.
        self.steps_stay_slow: Callable[[], bool] = lambda: False
        self.ranks_compared = False  #: true if several ranks report the time of their own work in a step
        self._slow_from, self._slow_at = 0, 0.0  # step and time at which slow steps were first detected
        self.ending = False  #: true if a rank ended with an error, so the launcher ends the other ranks
        self._pending = Pending()
        self._warnings = Pending()  # first matches of rules that predict a failure
        #: Rules of unfixed checkpoint faults that this agent or an earlier agent found.
        self.checkpoints = {
            each.rule for each in book.all_open if contains_message(each.note, f"concern.{CHECKPOINT}")
        }
        self.ranks = LostRankAlarms(book)
        self._harmful: dict[str, int] = {}  # number of consecutive harmful evaluations, by rule
        self._fine: dict[str, int] = {}
        self._known_past: dict[str, int] = {}  # number of matches before the agent started, by rule
        self._unknown_past = 0  # number of unknown exceptions before the agent started

    def matched(self, matches: Sequence[Match], now: float) -> None:
        """Add matches for fatal causes, which are reported after all lines of the failure have arrived."""
        for match in matches:
            page = self._catalogue.pages.get(match.rule)
            if page is None or page.role != "cause" or page.harm != "fatal" or match.rule in self._pending:
                continue
            rules = (match.rule, self._reported_as.get(match.rule, match.rule))
            if all(self._book.get("finding", rule) is None for rule in rules):
                self._pending.add(match, now, held=True)

    def warned(self, match: Match, now: float) -> None:
        """Add a rank's warning about an imminent or silent failure. Report it after the next diagnosis."""
        if match.captures.get(SEEN) == CHECKPOINT:
            self.checkpoints.add(match.rule)
        if self._book.get("finding", match.rule) is None:
            self._warnings.add(match, now)

    def due_in(self, now: float) -> float:
        """Return the time until a finding or a warning is due, in seconds, or infinity if none is pending."""
        return min(each.due_in(now, ending=self.ending) for each in (self._pending, self._warnings))

    def mark_known(self, diagnosis: Diagnosis) -> None:
        """Treat findings from before the start of the agent as known."""
        self._pending.clear()
        self._known_past = {finding.rule: finding.count for finding in diagnosis.findings}
        self._unknown_past = _unknown_count(diagnosis)

    def open_due_incidents(self, diagnosis: Diagnosis, now: float, *, everything: bool = False) -> None:
        """Open incidents for the matches and warnings that are due, or for all if `everything` is true.

        A match opens an incident unless the finding of its rule is not fatal. A warning opens an incident
        only if the finding of its rule is harmful.
        """
        findings = {finding.rule: finding for finding in diagnosis.findings}
        for rule, match in self._pending.take(now, ending=self.ending, everything=everything):
            finding = findings.get(rule) or findings.get(self._reported_as.get(rule, rule))
            if finding is None or finding.harm == "fatal":
                reported = finding.rule if finding is not None else rule
                self._raise(reported, "critical", diagnosis, finding, now, match)
        for rule, match in self._warnings.take(now, ending=self.ending, everything=everything):
            finding = findings.get(rule)
            if finding is not None and finding.harm in _HARMFUL:
                severity: Severity = "critical" if finding.harm == "fatal" else "warning"
                self._raise(rule, severity, diagnosis, finding, now, match)

    def judged(self, diagnosis: Diagnosis, now: float) -> None:
        """Update the incidents from a new diagnosis while the run continues."""
        findings = {finding.rule: finding for finding in diagnosis.findings}
        self._harmful = {rule: times for rule, times in self._harmful.items() if rule in findings}
        for rule, finding in findings.items():
            if self._by_progress(rule):
                self._judge(rule, finding, diagnosis, now)
        for incident in self._book.of_kind("finding"):
            if incident.rule in self.checkpoints and incident.rule not in findings:
                continue  # An earlier agent found this fault. Progress of the run does not fix it.
            if incident.rule in self.ranks.reported:
                continue  # this finding is not based on a log line
            known = findings.get(incident.rule)
            harmful = known is not None and known.harm in _HARMFUL
            if known is None and _of_unknown(incident):
                harmful = _fails_unknown(diagnosis)
            if known is None and incident.rule == STEP_TIME:
                harmful = self.steps_stay_slow()  # steps that become even slower are not a recovery
            self._settle(incident, known, diagnosis, now, harmful=harmful)
            if known is not None and harmful:
                self._book.update(incident, now, harm=known.harm, count=known.count, note=known.note)

    def open_silence_incident(self, diagnosis: Diagnosis, now: float) -> None:
        """Open an incident for an unknown exception after which no output was printed for a while.

        If the cause is inferred later, or another exception follows, the incident is only updated.
        """
        if not _fails_unknown(diagnosis) or _unknown_count(diagnosis) <= self._unknown_past:
            return
        guessed = diagnosis.primary if diagnosis.primary and diagnosis.primary.inferred else None
        unknown = diagnosis.unknown[0]
        finding = _finding(diagnosis, guessed.rule) if guessed else None
        rule = guessed.rule if guessed else UNKNOWN_FAILURE
        about = _cause(guessed, finding, unknown, (), diagnosis.progress)
        about["count"] = finding.count if finding else unknown.count
        incident = next(
            (incident for incident in self._book.of_kind("finding") if _of_unknown(incident)), None
        )
        if incident is None:
            self._book.open("finding", rule, "critical", now, **about)
        elif incident.rule in (rule, UNKNOWN_FAILURE):
            self._book.update(incident, now, **about)

    def stalled(
        self,
        state: StallState,
        diagnosis: Diagnosis,
        last_lines: Sequence[str],
        now: float,
        stacks: StallStacks | None = None,
        severity: Severity = "critical",
    ) -> None:
        """Open or update the incident of a stall."""
        about: IncidentUpdate = {
            **_progress(diagnosis.progress),
            "stalled_since": state.since,
            "stalled_seconds": round(state.seconds, 1),
            "threshold_seconds": round(state.threshold, 1),
            "learning": state.learning,
            "at_floor": state.at_floor,
            "primary": diagnosis.primary,
        }
        open_stalls = self._book.of_kind("stall")
        if open_stalls:
            self._book.update(open_stalls[0], now, severity, **about)
            if stacks is not None and open_stalls[0].stacks is None:
                self.located(stacks, diagnosis, now)
            return
        primary = diagnosis.primary
        rule = primary.rule if primary is not None and primary.harm == "fatal" else SILENT_HANG
        unknown = diagnosis.unknown[0] if primary is None and _fails_unknown(diagnosis) else None
        rule = UNKNOWN_FAILURE if unknown is not None else rule
        finding = _finding(diagnosis, rule)
        facts: IncidentUpdate = {
            "phase": state.phase,
            "rank": _stalled_rank(rule, primary, stacks),
            "stacks": stacks,
            "evidence": _evidence(primary, unknown, last_lines),
            "exception": exception_in_short(unknown) if unknown is not None else "",
            "next_steps": next_steps(unknown) if unknown is not None else [],
            "note": finding.note if finding else "",
            "count": finding.count if finding else 1,
            "background": background_rules(rule, diagnosis),
            **about,
        }
        self._book.open("stall", rule, severity, now, **facts)

    def located(self, stacks: StallStacks, diagnosis: Diagnosis, now: float) -> None:
        """Add the ranks' stacks to a stall that was opened before the stacks were available."""
        for incident in self._book.of_kind("stall"):
            rank = stacks.odd[0] if stacks.odd and incident.is_standstill else incident.rank
            primary = diagnosis.primary
            about: IncidentUpdate = {"stacks": stacks, "rank": rank, "primary": primary}
            if incident.rule == TRACE_CACHE and primary is not None and primary.rule == SILENT_HANG:
                self._book.judge_anew(incident, SILENT_HANG)  # the stacks contradict the rule
                finding = _finding(diagnosis, SILENT_HANG)
                about["note"] = finding.note if finding else ""
                about["count"], about["evidence"] = 1, primary.evidence
                about["background"] = background_rules(SILENT_HANG, diagnosis)
            self._book.update(incident, now, **about)

    def recovered(self, seconds: float, progress: Progress, phase: Phase, now: float) -> None:
        """Resolve the stall. The run continues in `phase` after `seconds` seconds without progress."""
        facts: IncidentUpdate = {
            **_progress(progress),
            "stalled_seconds": round(seconds, 1),
            "phase": phase,
        }
        for incident in self._book.of_kind("stall"):
            self._book.resolve(incident, now, "recovered", **facts)

    def stepped(self, step: int | None, now: float) -> None:
        """If the run has reached a different step, resolve the stall that an earlier agent left open."""
        for incident in self._book.of_kind("stall"):
            if step is not None and step != incident.step:
                self._book.resolve(incident, now, "recovered", step=step)

    def ended(
        self,
        ending: Ending,
        diagnosis: Diagnosis,
        last_lines: Sequence[str],
        quiet: float | None,
        now: float,
    ) -> None:
        """Conclude the run after the command's end. `quiet` is the duration of a stall, in seconds.

        Only a failure opens an incident, because users need no message about their own Control+C. If a
        stalled run was stopped from outside, the stall is already the incident, and no other incident opens.
        """
        if ending.kind == "unknown":  # only the agent stopped, so open incidents stay open
            self.open_due_incidents(diagnosis, now, everything=True)
            self.open_silence_incident(diagnosis, now)
            return
        self._pending.clear()
        if ending.kind == "finished":  # a broken last checkpoint is worth reporting even if the run succeeded
            self.open_due_incidents(diagnosis, now, everything=True)
        self._warnings.clear()
        stalls = self._book.of_kind("stall")
        failed = ending.failed and not (stalls and ending.stopped and diagnosis.verdict == "stalled")
        resolution = RESOLUTIONS.get(ending.kind, "run-failed" if failed else "run-stopped")
        for incident in stalls:
            stalled = incident.stalled_seconds if quiet is None else round(quiet, 1)
            facts: IncidentUpdate = {
                **_progress(diagnosis.progress),
                "stalled_seconds": stalled,
                "ending": ending,
            }
            self._book.resolve(incident, now, resolution, **facts)
        # If an open incident already reports the cause of the end, that incident also reports the end and is
        # not resolved.
        reported = self._death_finding(diagnosis) if failed else None
        self._book.resolve_all(now, resolution, unfixed=self.checkpoints, spare=reported, ending=ending)
        if not failed:
            return
        primary = diagnosis.primary
        unknown = diagnosis.unknown[0] if diagnosis.unknown else None
        finding = _finding(diagnosis, primary.rule) if primary else None
        rule = primary.rule if primary else UNKNOWN_FAILURE
        death = _cause(primary, finding, unknown, last_lines, diagnosis.progress)
        death["ending"] = ending
        death["of_peers"] = primary is not None and is_of_peers(primary, self._catalogue)
        if reported is None:
            self._book.open("ended", rule, "critical", now, **death)
        elif primary is not None or reported.rule == rule:
            self._book.fail(reported, now, rule, **death)
        else:  # a reported finding is more useful than a diagnosis without a cause
            facts = {**_progress(diagnosis.progress), "ending": ending}
            self._book.fail(reported, now, reported.rule, **facts)

    def _death_finding(self, diagnosis: Diagnosis) -> Incident | None:
        """Return the open finding that explains the end of the run.

        Such a finding either has the same cause as the end or is a fatal finding that no step followed. A
        finding about a checkpoint never explains the end.
        """
        found = [
            incident
            for incident in self._book.of_kind("finding")
            if incident.severity == "critical" and incident.rule not in self.checkpoints
        ]
        cause = diagnosis.primary.rule if diagnosis.primary else UNKNOWN_FAILURE
        same = [
            incident for incident in found if cause in (incident.rule, self._reported_as.get(incident.rule))
        ]
        last = diagnosis.progress.last_step or 0
        # Accept a difference of one step because other ranks can be one step ahead of the failed rank.
        dying = [
            incident for incident in found if incident.harm == "fatal" and (incident.step or 0) >= last - 1
        ]
        return min(same or dying, key=lambda incident: incident.opened_at, default=None)

    def _by_progress(self, rule: str) -> bool:
        """Return whether the impact of this rule depends on the run's progress alone."""
        page = self._catalogue.pages.get(rule)
        if page is None or (rule in STANDSTILLS and not page.patterns):
            return False  # a standstill without a log line is reported as a stall
        return page.harm == "by-progress" or not page.patterns

    def _judge(self, rule: str, finding: Finding, diagnosis: Diagnosis, now: float) -> None:
        if finding.harm not in _HARMFUL or self._explained(rule, diagnosis):
            self._harmful.pop(rule, None)
            return
        if finding.count <= self._known_past.get(rule, 0):
            return
        self._harmful[rule] = self._harmful.get(rule, 0) + 1
        if rule == STEP_TIME and self._comparing(diagnosis.progress.last_step or 0, now):
            return
        if any(incident.rule == rule for incident in self._book.of_kind("stall")):
            return  # the open stall already reports this rule
        if finding.harm == "fatal" or self._harmful[rule] >= _DEGRADING_AFTER:
            self._raise(rule, "critical" if finding.harm == "fatal" else "warning", diagnosis, finding, now)

    def _explained(self, rule: str, diagnosis: Diagnosis) -> bool:
        """Return whether another finding already reports the cause of this rule."""
        if rule != STEP_TIME:
            return False
        late = self._book.get("finding", STRAGGLER)
        if STRAGGLER in self._warnings or (
            late is not None and (late.step or 0) >= self._slow_from - _COMPARED_STEPS
        ):
            return True  # the rank became slow when the steps became slow
        slowing = any(
            finding.rule == TRACE_CACHE and finding.harm in _HARMFUL for finding in diagnosis.findings
        )
        return slowing or self._book.get("finding", TRACE_CACHE) is not None

    def _comparing(self, step: int, now: float) -> bool:
        """Return whether the comparison of ranks might still name one rank as the cause of slow steps."""
        if self._harmful[STEP_TIME] == 1:
            self._slow_from, self._slow_at = step, now
        soon = (
            self._slow_from <= step < self._slow_from + _COMPARED_STEPS
            and now - self._slow_at < _COMPARED_SECONDS
        )
        return self.ranks_compared and soon

    def _raise(
        self,
        rule: str,
        severity: Severity,
        diagnosis: Diagnosis,
        finding: Finding | None,
        now: float,
        match: Match | None = None,
    ) -> None:
        primary = diagnosis.primary if diagnosis.primary and diagnosis.primary.rule == rule else None
        place = finding.first if finding else None
        line = match.line if match else None
        shown: list[Text] = [line.text] if line else [place.text] if place else []
        # Use the values of the diagnosis, so that notifications and pages agree.
        where = _progress(diagnosis.progress, place.step if place else None)
        where["rank"] = line.rank if line else None
        if place is not None and place.rank is not None:
            where["rank"] = place.rank
        facts: IncidentUpdate = {
            "harm": finding.harm if finding else "fatal",
            "count": finding.count if finding else 1,
            "evidence": list(primary.evidence) if primary else shown,
            "note": finding.note if finding else "",
            "primary": primary,
            "of_peers": primary is not None and is_of_peers(primary, self._catalogue),
            **where,
        }
        self._book.open("finding", rule, severity, now, **facts)

    def _settle(
        self,
        incident: Incident,
        finding: Finding | None,
        diagnosis: Diagnosis,
        now: float,
        *,
        harmful: bool,
    ) -> None:
        """Resolve an open finding after several consecutive diagnoses in which the finding is harmless."""
        if harmful:
            self._fine.pop(incident.rule, None)
            return
        self._fine[incident.rule] = self._fine.get(incident.rule, 0) + 1
        if self._fine[incident.rule] >= _FINE_AFTER:
            del self._fine[incident.rule]
            facts = _progress(diagnosis.progress)
            facts["note"] = finding.note if finding else incident.note
            self._book.resolve(incident, now, "recovered", **facts)


def _stalled_rank(rule: str, primary: Primary | None, stacks: StallStacks | None) -> int | None:
    """Return the rank that, according to the stacks or the cause in the log, blocks the run."""
    if stacks is not None and stacks.odd and is_standstill(rule):
        return stacks.odd[0]
    return primary.rank if primary is not None and rule == primary.rule else None


def _finding(diagnosis: Diagnosis, rule: str) -> Finding | None:
    return next((finding for finding in diagnosis.findings if finding.rule == rule), None)


def _cause(
    primary: Primary | None,
    finding: Finding | None,
    unknown: UnknownException | None,
    last_lines: Sequence[str],
    progress: Progress,
) -> IncidentUpdate:
    """Return the incident's fields about the cause: `primary` with its `finding`, or an unknown exception."""
    return {
        "rank": primary.rank if primary else unknown.first.rank if unknown else None,
        "evidence": _evidence(primary, unknown, last_lines),
        "exception": "" if primary else exception_in_short(unknown),
        "next_steps": [] if primary or unknown is None else next_steps(unknown),
        "note": finding.note if finding else "",
        "count": finding.count if finding else 1,
        "primary": primary,
        **_progress(progress, primary.step if primary else None),
    }


def _unknown_count(diagnosis: Diagnosis) -> int:
    return sum(exception.count for exception in diagnosis.unknown)


def _fails_unknown(diagnosis: Diagnosis) -> bool:
    """Return whether the run fails with an exception that no rule matches, even if the cause is inferred."""
    guessed = diagnosis.primary is not None and bool(diagnosis.primary.inferred)
    return guessed or diagnosis.verdict == UNKNOWN_FAILURE


def _of_unknown(incident: Incident) -> bool:
    """Return whether the incident was opened for an exception that no rule matches."""
    guessed = incident.primary is not None and bool(incident.primary.inferred)
    return guessed or incident.rule == UNKNOWN_FAILURE


def _evidence(
    primary: Primary | None, unknown: UnknownException | None, last_lines: Sequence[str]
) -> list[Text]:
    if primary is not None and primary.evidence:
        return list(primary.evidence)
    if unknown is not None:
        place = own_frame(unknown.frames) or "".join(unknown.frames[-1:])
        return [*filter(None, [place]), unknown.described]
    return list(last_lines)


def _progress(progress: Progress, step: int | None = None) -> IncidentUpdate:
    """Return the progress fields of an incident. If the problem began at a known `step`, use that step."""
    last = step is None or step == progress.last_step
    return {
        "step": progress.last_step if last else step,
        "total_steps": progress.total_steps,
        "last_loss": progress.last_loss if last else None,  # the last loss belongs to a later step
    }
