"""What the folder of a run knows beside its logs: how the run ended, what was open when it did, the stacks of
its last stall, and the diagnosis that was made at its end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stallwatch_exporter.incident import RANK_GONE, Incident
from stallwatch_exporter.runs.reserve import NAME
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_logs.inputs import InputProblem
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.messages import PAGE, Message, Text, contains, message
from stallwatch_rules.records import Diagnosis, Primary
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.text.digest import short_duration
from stallwatch_rules.text.reported import iso

if TYPE_CHECKING:
    from stallwatch_exporter.runs.runfolder import AgentInfo


class Recorded(NamedTuple):
    """How a run ended that Stallwatch watched."""

    folder: Path | None = None  #: of the run, if the agent saw its end: it made a diagnosis then
    ending: Ending | None = None
    ended_at: float | None = None  #: Unix seconds
    waited: float | None = None  #: seconds without a step, when a stall was seen last or somebody stopped it
    stall: Incident | None = None  #: that was open when the run, or the watching, ended
    findings: Sequence[Incident] = ()  #: fatal ones that were
    watched: bool = False  #: the agent is at it
    end: Incident | None = None  #: of the run, if it alone shows that: the run's own record was cut short
    threshold: float | None = None  #: seconds of quiet that were a stall in what the run did last
    unheard: float | None = None  #: when it was last heard of, where it is gone and saw no end; Unix seconds
    stacks: StallStacks | None = None  #: of the last stall, if the run did not recover from it
    lacking: Sequence[Message] = ()  #: what the record does not hold


def is_recorded(paths: Sequence[str | os.PathLike[str]]) -> bool:
    """Return whether the one path given is the folder that Stallwatch kept of a run."""
    # Path.is_file raises an error where the folder may not be entered.
    names = ("agent.json", NAME) if len(paths) == 1 else ()
    return any(os.path.isfile(Path(paths[0]) / name) for name in names)  # noqa: PTH113


def recorded(paths: Sequence[str | os.PathLike[str]]) -> Recorded:
    """What is known of the run, if the one path given is the folder that Stallwatch kept of it."""
    if not is_recorded(paths):
        return Recorded()
    # Most logs are in no such folder.
    from stallwatch_exporter.runs.runfolder import agent_alive, latest_folder, read_info

    given = Path(paths[0])
    folder = latest_folder(given)
    incidents, info = read_incidents(folder), read_info(folder)
    if folder != given:
        incidents = list({one.id: one for one in (*read_incidents(given), *incidents)}.values())
    stalls = sorted((one for one in incidents if one.kind == "stall"), key=lambda one: one.opened_at)
    stacks = stalls[-1].stacks if stalls and stalls[-1].resolution != "recovered" else None
    if info is None:
        return Recorded(stacks=stacks)
    stall = next((one for one in reversed(stalls) if _was_open(one, info.started_at)), None)
    left = [one for one in incidents if _was_open(one, info.started_at)]
    findings = [one for one in left if one.began_as[0] == "finding" and one.harm == "fatal"]
    watching = info.ending is None and agent_alive(info)
    end = None if info.ending is not None or watching else recorded_end(incidents, info.started_at)
    known = info.ending or (end.ending if end is not None else None)
    threshold = stall.threshold_seconds if stall is not None else info.threshold
    if known is not None and known.failed is False:
        stall, findings = None, []
    quiet = known.quiet if known is not None else None
    found = Recorded(
        ending=known,
        waited=quiet if stall is None else stall.stalled_seconds,
        stall=stall,
        findings=findings,
        threshold=threshold,
        stacks=stacks,
        lacking=lacking(info),
    )
    if known is None:  # the agent was killed, or still watches
        return found._replace(watched=watching, unheard=None if watching else info.updated_at)
    seen = folder if info.ending is not None else None
    return found._replace(folder=seen, ended_at=info.ended_at, end=end)


def lacking(info: AgentInfo) -> list[Message]:
    """Say what the record of a run does not hold, because it could not be written."""
    found = [message("diagnosis.partial-record", why=info.partial)] if info.partial else []
    if info.gaps:
        since, until = iso(info.gaps[0].since) or "", iso(info.gaps[-1].until) or ""
        lines = f"{sum(gap.lines for gap in info.gaps):,}"
        found.append(message("diagnosis.partial-copies", lines=lines, since=since, until=until))
    return found


def recorded_end(incidents: Sequence[Incident], started: float) -> Incident | None:
    """What was reported of a run's end since the last agent began to watch it (`started`)."""
    ends = [one for one in incidents if one.kind == "ended" and one.ending and one.updated_at >= started]
    return max(ends, key=lambda one: one.updated_at, default=None)


def _was_open(incident: Incident, started: float) -> bool:
    """Whether nothing had mended it at the end.

    What was closed before the last agent began to watch (`started`), that one would have raised again.
    """
    if incident.became_end:
        return incident.updated_at >= started
    if incident.kind == "ended" or not (
        incident.status == "open" or incident.outlasted or incident.unwatched
    ):
        return False
    return incident.resolved_at is None or incident.resolved_at >= started


def with_recorded(diagnosis: Diagnosis, known: Recorded) -> Diagnosis:
    """The diagnosis of the logs with what the incidents knew that no line tells."""
    notes: list[Text] = []
    if known.stall is not None:
        diagnosis = _with_stall(diagnosis, known.stall)
        silence = short_duration(known.stall.stalled_seconds or 0.0)
        at = iso(known.stall.opened_at)
        notes.append(message("diagnosis.stall-was-open", time=at or "", silence=silence))
    for incident in known.findings:
        if any(one.rule == incident.rule for one in diagnosis.findings):
            continue  # the log shows it, and what became of it
        what = incident.note or _last_said(incident)
        at = iso(incident.opened_at)
        notes.append(message("diagnosis.finding-was-open", time=at or "", what=what))
        if not diagnosis.in_trouble and not _went_on(diagnosis, incident):
            diagnosis = _failed(diagnosis, incident.primary)
    if known.end is not None:
        diagnosis = _with_end(diagnosis, known.end)
        at = iso(known.end.updated_at) or ""
        notes.append(message("diagnosis.ending-told", time=at, what=_last_said(known.end)))
    notes += diagnosis.notes
    notes += known.lacking
    if known.watched:
        notes.append(message("diagnosis.still-watched"))
    elif known.unheard is not None:
        notes.append(message("diagnosis.agent-gone", time=iso(known.unheard) or ""))
    return msgspec.structs.replace(diagnosis, notes=notes)


def _last_said(incident: Incident) -> Text:
    """The last line of its evidence that was said: the indented ones are calls that led to another."""
    said = [line for line in incident.evidence if isinstance(line, Message) or not line.startswith("  ")]
    return next(iter(said[-1:]), incident.rule)


def _with_end(diagnosis: Diagnosis, end: Incident) -> Diagnosis:
    """With the cause that was known when the run ended, where the copies show none."""
    shown = diagnosis.primary is not None and diagnosis.primary.evidence
    if end.primary is None or shown or diagnosis.unknown:
        return diagnosis
    return _failed(diagnosis, end.primary)


def _failed(diagnosis: Diagnosis, primary: Primary | None) -> Diagnosis:
    """The diagnosis of a run that failed of this; what stopped it from outside, if that is the same."""
    same = diagnosis.primary is not None and primary is not None and diagnosis.primary.rule == primary.rule
    if diagnosis.verdict == "interrupted" and same:
        return msgspec.structs.replace(diagnosis, primary=primary)
    return msgspec.structs.replace(diagnosis, verdict="failed", primary=primary, interrupted_by=None)


def _with_stall(diagnosis: Diagnosis, stall: Incident) -> Diagnosis:
    """With the cause, or the advice, that only who watched could know: by the probe, or the processes."""
    primary = diagnosis.primary
    if stall.primary is None or (primary is not None and primary.rule != SILENT_HANG):
        return diagnosis
    if stall.primary.rule != SILENT_HANG and stall.primary.harm == "fatal":
        return msgspec.structs.replace(diagnosis, primary=stall.primary)
    if primary is None:
        return diagnosis
    why = (
        stall.primary.why
    )  # of a message's words, or what version 0.1 stored, only a page's own are its advice
    of_this_run = why.id != PAGE if isinstance(why, Message) else not contains(primary.why, why)
    if not of_this_run:
        return diagnosis
    primary = msgspec.structs.replace(primary, why=stall.primary.why, fixes=stall.primary.fixes)
    return msgspec.structs.replace(diagnosis, primary=primary)


def _went_on(diagnosis: Diagnosis, incident: Incident) -> bool:
    """Whether the logs show steps after it. Of a rank that is gone they show those of the others."""
    last = diagnosis.progress.last_step
    if incident.rule == RANK_GONE or last is None or incident.step is None:
        return False
    return last > incident.step


def with_kept(diagnosis: Diagnosis, known: Recorded) -> Diagnosis:
    """The diagnosis that was made when the run ended, if the copies of its output no longer show why it did.

    Copies are cut short when the disk is full, and gone when somebody deletes them.
    """
    folder = known.folder
    shown = diagnosis.primary is not None and diagnosis.primary.evidence  # else it is known of the end alone
    if folder is None or shown or diagnosis.unknown:
        return diagnosis
    from stallwatch_exporter.runs.runfolder import read_diagnosis

    kept = read_diagnosis(folder)
    if kept is None:
        return diagnosis
    left, seen = diagnosis.stats.lines, kept.stats.lines
    if left >= seen or (diagnosis.stats.files and kept.primary is None and not kept.unknown):
        return diagnosis
    note = message("diagnosis.kept-diagnosis", left=f"{left:,}", seen=f"{seen:,}")
    return msgspec.structs.replace(kept, notes=[note, *kept.notes, *known.lacking])


def without_copies(diagnosis: Diagnosis, problems: list[InputProblem], folder: Path) -> Diagnosis:
    """Take out of `problems` that nothing was read, if the record of the run shows how it went."""
    if not (diagnosis.stats.files or diagnosis.in_trouble):
        return diagnosis
    missing = [one for one in problems if Path(one.path).is_relative_to(folder)]
    problems[:] = [one for one in problems if one not in missing]
    words = set(map(str, missing))
    notes: list[Text] = [note for note in diagnosis.notes if not isinstance(note, str) or note not in words]
    return msgspec.structs.replace(diagnosis, notes=[*notes, message("diagnosis.no-copies")])
