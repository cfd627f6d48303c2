"""Read the agents' records of a run: its ending, open incidents, stacks, and last diagnosis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from stallwatch_exporter.cluster.absence import host_gone
from stallwatch_exporter.incident import HOST_GONE, HOST_MISSING, RANK_GONE, Incident
from stallwatch_exporter.runs.run_state import last_sign
from stallwatch_exporter.runs.runfolder import (
    RUN_INCIDENTS,
    AgentInfo,
    agent_alive,
    latest_folder,
    read_diagnosis,
    read_info,
)
from stallwatch_exporter.watching.incidents import last_states, read_incidents, read_journal
from stallwatch_logs.inputs import InputProblem
from stallwatch_rules.decoding import from_json
from stallwatch_rules.diagnosis.awaited import is_of_peers
from stallwatch_rules.endings import Ending
from stallwatch_rules.files import open_regular
from stallwatch_rules.judgements.conclusions import SILENT_HANG, STRAGGLER
from stallwatch_rules.locale import contains_message, duration_text
from stallwatch_rules.messages import PAGE, Message, Text, contains, message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis, Primary
from stallwatch_rules.stacks.folding import by_host, over_hosts
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.spans import host_of
from stallwatch_rules.text.digest import fold_names
from stallwatch_rules.text.display import iso
from stallwatch_rules.text.foreign_json import NOT_JSON

# Failures within this time can have the same cause. torchrun waits up to 30 seconds for ranks to end after
# SIGTERM.
_NEAR_SECONDS = 60.0
# Minimum number of seconds from the last record of a lost host to the failure of the other hosts. Launchers
# wait up to 30 s for their ranks to end, and agents write their records every 5 s.
_LOST_BEFORE_SECONDS = 35.0
_OVERDUE_SECONDS = 60.0  # maximum age of an agent's record; agents write their records every 5 s
#: Notes that are superfluous if the lost host is the cause.
_ABOUT_LOST = ("diagnosis.absent-ranks", "diagnosis.hosts-unheard", "diagnosis.first-host")
# Signals that other processes send: SIGTERM by a launcher, and SIGABRT by the NCCL watchdog.
_BY_PEERS = (-15, -6)


class Recorded(NamedTuple):
    """Recorded facts about the end of a run that Stallwatch watched."""

    folder: Path | None = None  #: folder of the run, if the agent observed its end and stored a diagnosis
    ending: Ending | None = None
    ended_at: float | None = None  #: Unix seconds
    waited: float | None = None  #: seconds without a step when the run stalled or was stopped by the user
    stall: Incident | None = None  #: stall that is open or was open when the run or the agent ended
    stall_continues: bool = False  #: True if the agent that reported the stall still watches it
    quiet: tuple[float, float] | None = None  #: seconds without progress, and threshold, of a watched run
    findings: Sequence[Incident] = ()  #: open findings that are fatal, and findings about slow hosts
    watched: bool = False  #: True if the agent still watches the run
    end: Incident | None = None  #: incident of the run's end, if the agent's own record has no end
    threshold: float | None = None  #: threshold, in seconds, of the run's last phase
    unheard: float | None = None  #: Unix time of the last report of an agent that ended before the run
    stacks: StallStacks | None = None  #: stacks of the last stall, if the run did not recover from it
    lacking: Sequence[Message] = ()  #: notes on missing parts of the record
    info: AgentInfo | None = None  #: record that the agent wrote about itself
    elsewhere: Incident | None = None  #: cause on a host without a record, reported by the other agents
    gone: Mapping[str, float] = {}  #: last record (Unix time) of each host that was lost before the failure
    absence: Primary | None = None  #: cause that the agents determined, if hosts did not report
    versions: Mapping[int, Mapping[str, str]] = {}  #: versions of the packages that a rank imported, by rank
    #: Last step on hosts whose end is recorded, if the agent of another host was lost before the run
    #: finished.
    last_step: int | None = None


def recorded(folders: Sequence[Path], ahead: Mapping[str, float] | None = None) -> Recorded:
    """Return the facts that Stallwatch stored about a run in these folders, one folder for each agent.

    `ahead` maps hosts to the seconds by which their clocks are ahead of most other clocks, if known.
    """
    parts = [_of_agent(folder) for folder in folders]
    merged = _merged_incidents(folders)
    if len(parts) > 1 or (parts and _had_others(parts[0], merged)):
        return _of_run(merged, parts, ahead or {})
    return parts[0] if parts else Recorded()


def _had_others(part: Recorded, merged: Sequence[Incident]) -> bool:
    """Return whether agents on other hosts sent reports to this agent, even if their records are missing."""
    hosts = {host for incident in merged for host in (incident.host, *incident.hosts) if host}
    return part.info is not None and bool(hosts - {part.info.host_in_run})


def _of_agent(given: Path) -> Recorded:
    folder = latest_folder(given)
    incidents, info = read_incidents(folder), read_info(folder)
    if folder != given:
        incidents = list({each.id: each for each in (*read_incidents(given), *incidents)}.values())
    versions = dict(_versions(folder))
    stalls = [incident for incident in incidents if incident.kind == "stall"]
    stalls.sort(key=attrgetter("opened_at"))
    stacks = stalls[-1].stacks if stalls and stalls[-1].resolution != "recovered" else None
    if info is None:
        return Recorded(stacks=stacks, versions=versions)
    stall = next((stall for stall in reversed(stalls) if _was_open(stall, info.started_at)), None)
    fatal = [incident for incident in incidents if incident.harm == "fatal"]
    findings = [
        finding
        for finding in fatal
        if finding.began_as[0] == "finding" and _was_open(finding, info.started_at)
    ]
    watching = info.ending is None and agent_alive(info)
    end = None if info.ending is not None or watching else recorded_end(incidents, info.started_at)
    known = info.ending or (end.ending if end is not None else None)
    threshold = stall.threshold_seconds if stall is not None else info.threshold
    if known is not None and known.failed is False:
        stall, findings = None, []
    quiet = None
    if stall is not None and watching:  # both times are from the agent's clock
        lasted = max(stall.stalled_seconds or 0.0, info.updated_at - stall.quiet_since)
        stall = replace(stall, stalled_seconds=lasted)
    elif watching and info.quiet_since is not None and info.threshold:
        quiet = max(0.0, info.updated_at - info.quiet_since), info.threshold
    waited = known.quiet if known is not None else None
    found = Recorded(
        ending=known,
        waited=waited if stall is None else stall.stalled_seconds,
        stall=stall,
        stall_continues=stall is not None and watching,
        quiet=quiet,
        findings=findings,
        threshold=threshold,
        stacks=stacks,
        lacking=lacking(info),
        info=info,
        versions=versions,
    )
    if known is None:  # the agent was killed or is still running
        return found._replace(watched=watching, unheard=None if watching else last_sign(info, folder))
    seen = folder if info.ending is not None else None
    return found._replace(folder=seen, ended_at=info.ended_at, end=end)


def _versions(folder: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield each rank that reported package versions, together with these versions."""
    from stallwatch_exporter.watching.probe_events import versions_in

    with suppress(OSError), open_regular(folder / "events.jsonl") as lines:
        for line in lines:
            if b'"versions"' not in line:  # skip the many events of other kinds without decoding them
                continue
            with suppress(*NOT_JSON):  # skip a truncated line
                event = from_json(line, dict[str, Any])
                if event.get("kind") == "versions" and isinstance(rank := event.get("rank"), int):
                    yield rank, versions_in(event)


def _of_run(merged: Sequence[Incident], parts: Sequence[Recorded], ahead: Mapping[str, float]) -> Recorded:
    """Merge the records of the agents on several hosts. The host that failed first determines the ending."""

    def when(recorded: Recorded) -> float:
        if recorded.info is None:
            return math.inf
        return (recorded.ended_at or recorded.info.updated_at) - ahead.get(recorded.info.host_in_run, 0.0)

    def opened(incident: Incident) -> float:
        return incident.opened_at - ahead.get(incident.host, 0.0)

    hosts = {part.info.host_in_run for part in parts if part.info is not None}
    if len(hosts) > 1:
        parts = [_on_host(part, part.info.host_in_run) if part.info is not None else part for part in parts]
    parts = sorted(parts, key=when)
    first = _first_to_fail(parts, when)
    if first.ending is not None and first.ending.failed:  # hosts that stalled later were waiting for `first`
        parts = [
            part._replace(stall=None, stacks=None)
            if part.stall is not None and opened(part.stall) > when(first)
            else part
            for part in parts
        ]
    stacks = _stacks_of_all(parts, merged)
    guilty = {host_of(rank, stacks.hosts) for rank in stacks.odd} if stacks is not None else set()

    stalls = [part.stall for part in parts if part.stall is not None]
    stall = min(stalls, key=lambda incident: (incident.host not in guilty, opened(incident)), default=None)
    findings: dict[tuple[str, str], Incident] = {}
    for finding in sorted((incident for part in parts for incident in part.findings), key=opened):
        findings.setdefault((finding.rule, finding.host if finding.rule == RANK_GONE else ""), finding)
    ending = first.ending
    if ending is not None and ending.failed is False:
        stall, findings, stacks = None, {}, None
    if ending is not None:
        every = [part.ending for part in (first, *parts) if part.ending is not None]
        codes: dict[int, int | None] = {}
        for rank, code in (item for each in every for item in each.codes.items()):
            codes.setdefault(rank, code)
        left = list(dict.fromkeys(rank for each in every for rank in each.left))
        running = list(dict.fromkeys(rank for each in every for rank in each.running))
        ending = replace(ending, codes=codes, left=left, running=running)
    slow = [each for each in merged if each.rule == STRAGGLER and each.resolution != "recovered"]
    notes = [*_host_notes(first, parts, merged), *(note for part in parts for note in part.lacking)]
    absences = [each for each in merged if each.kind == "ended" and each.rule in (HOST_GONE, HOST_MISSING)]
    others = [each for each in merged if each not in absences]
    started_at = first.info.started_at if first.info is not None else -math.inf
    if ending is not None and ending.failed is False:
        absences = []
    absences = [each for each in absences if each.updated_at >= started_at]  # exclude earlier starts
    elsewhere = [each for each in others if each.outlasted and each.host and each.host not in hosts]
    causes = [
        incident
        for incident in elsewhere
        if (primary := incident.primary) is not None and (primary.role, primary.harm) == ("cause", "fatal")
    ]
    failed_at = when(first) if first.ending is not None and first.ending.failed else -math.inf
    lost = [part for part in parts if _is_lost(part) and when(part) < failed_at - _LOST_BEFORE_SECONDS]
    holders = [part for part in parts if stall is not None and part.stall is stall]
    unheard = [part.unheard for part in parts if part.unheard is not None]
    steps = [part.info.step or 0 for part in parts if part.info is not None and part.ending is not None]
    return Recorded(
        folder=first.folder,
        ending=ending,
        ended_at=when(first) if first.ended_at is not None else None,
        waited=stall.stalled_seconds if stall is not None else first.waited,
        stall=stall,
        stall_continues=any(part.stall_continues for part in holders),
        quiet=min((part.quiet for part in parts if part.quiet is not None), default=None),
        findings=[*findings.values(), *slow],
        watched=any(part.watched for part in parts if part not in lost),
        end=first.end,
        threshold=first.threshold if stall is None else stall.threshold_seconds,
        unheard=max(unheard, default=None) if ending is None else None,
        stacks=stacks,
        lacking=[note for at, note in enumerate(notes) if note not in notes[:at]],
        info=first.info,
        elsewhere=causes[-1] if causes and ending is not None and ending.failed is not False else None,
        gone={part.info.host_in_run: part.info.updated_at for part in lost if part.info is not None},
        absence=absences[-1].primary if absences else None,
        versions={rank: found for part in parts for rank, found in part.versions.items()},
        last_step=max(steps, default=0)
        if unheard and ending is not None and ending.failed is False
        else None,
    )


def _is_lost(part: Recorded) -> bool:
    """Return whether the agent has not written its record for a while and has not recorded an ending."""
    if part.info is None or part.ending is not None:
        return False
    return not part.watched or time.time() - part.info.updated_at > _OVERDUE_SECONDS


def _on_host(part: Recorded, host: str) -> Recorded:
    """Return a copy of the record in which `host` is the host of all incidents and of their causes."""

    def placed(incident: Incident) -> Incident:
        primary = incident.primary
        primary = replace(primary, host=host) if primary is not None else None
        return replace(incident, host=host, primary=primary)

    return part._replace(
        stall=placed(part.stall) if part.stall is not None else None,
        findings=[placed(incident) for incident in part.findings],
        end=placed(part.end) if part.end is not None else None,
    )


def _first_to_fail(parts: Sequence[Recorded], when: Callable[[Recorded], float]) -> Recorded:
    """Return the record of the host that failed first.

    If no host failed, return the record of a host that has not finished. If all hosts have finished, return
    the record of the host that finished last. After a rank is lost, other hosts fail within moments, and
    launchers wait for their other ranks before they end. Therefore, a host on which a signal ended a rank
    takes precedence over hosts that failed at about the same time.
    """
    failed = [part for part in parts if part.ending is not None and part.ending.failed]
    if failed:
        near = [part for part in failed if when(part) - when(failed[0]) <= _NEAR_SECONDS]
        killed = [part for part in near if part.ending is not None and _was_killed(part.ending)]
        return killed[0] if killed else failed[0]
    unfinished = [part for part in parts if part.ending is not None and part.ending.failed is None]
    known = [part for part in parts if part.ending is not None]
    return next(iter([*unfinished, *reversed(known), *parts]))


def _was_killed(ending: Ending) -> bool:
    if ending.kind == "killed":
        return not _passed_signal_on(ending)
    first = next(iter(ending.codes.values()), None)
    return ending.kind == "oom-killed" or (first is not None and first < 0 and first not in _BY_PEERS)


def _passed_signal_on(ending: Ending) -> bool:
    return contains_message(ending.detail, "run.passed-on")


def _merged_incidents(folders: Sequence[Path]) -> list[Incident]:
    """Return the last state of each incident in the folders of agents that merged reports, oldest first."""
    return last_states(each for folder in folders for each in read_journal(folder, name=RUN_INCIDENTS))


def _stacks_of_all(parts: Sequence[Recorded], merged: Sequence[Incident]) -> StallStacks | None:
    """Return the stacks of all hosts at the last stall.

    These are the stacks that the agents combined during the run, unless combining the stacks in the hosts'
    records gives a more certain result.
    """
    # An incident that a single agent sent names no hosts and contains only the stacks of that agent's host.
    last = next((each for each in reversed(merged) if each.hosts and each.stacks is not None), None)
    live = last.stacks if last is not None and last.resolution != "recovered" else None
    recorded_stacks = by_host(
        (part.info.host_in_run, part.stacks)
        for part in parts
        if part.info is not None and part.stacks is not None
    )
    if not recorded_stacks:
        return live
    joined = over_hosts(recorded_stacks)
    return live if live is not None and live.confidence >= joined.confidence else joined


def _host_notes(first: Recorded, parts: Sequence[Recorded], merged: Sequence[Incident]) -> Iterator[Message]:
    """Yield notes on the host that failed first, and on hosts that have no record or no ending."""
    infos = [part.info for part in parts if part.info is not None]
    hosts = {info.host_in_run for info in infos}
    named = {host for incident in merged for host in incident.hosts}
    looks = [incident.stacks for incident in merged if incident.stacks is not None]
    named |= {host for stacks in looks for host in (*stacks.hosts, *stacks.silent)}
    expected = max((info.agents or 0 for info in infos), default=0)
    itself = first.ending is not None and first.ending.failed and not _passed_signal_on(first.ending)
    if missing := named - hosts:
        yield message("diagnosis.hosts-without-record", hosts=fold_names(missing))
    elif expected > len(infos):
        yield message("diagnosis.agents-without-record", count=len(infos), expected=expected)
    elif first.info is not None and itself and len(hosts) > 1:
        yield message("diagnosis.first-host", host=first.info.host_in_run)
    gone = [part.info for part in parts if part.info is not None and part.unheard is not None]
    if gone and first.ending is not None:
        last = iso(max(info.updated_at for info in gone)) or ""
        yield message(
            "diagnosis.hosts-unheard", hosts=fold_names(info.host_in_run for info in gone), time=last
        )


def lacking(info: AgentInfo) -> list[Message]:
    """Return notes on the parts of a run's record that could not be written."""
    found = [message("diagnosis.partial-record", why=info.partial)] if info.partial else []
    if info.gaps:
        since, until = iso(info.gaps[0].since) or "", iso(info.gaps[-1].until) or ""
        lines = f"{sum(gap.lines for gap in info.gaps):,}"
        found.append(message("diagnosis.partial-copies", lines=lines, since=since, until=until))
    return found


def recorded_end(incidents: Sequence[Incident], started: float) -> Incident | None:
    """Return the incident about a run's end, unless it was reported before the last agent started."""
    ends = [each for each in incidents if each.kind == "ended" and each.ending and each.updated_at >= started]
    return max(ends, key=attrgetter("updated_at"), default=None)


def _was_open(incident: Incident, started: float) -> bool:
    """Return whether the incident was still open when the run ended.

    The last agent, which started at `started`, would have reopened an incident that was closed earlier.
    """
    if incident.became_end:
        return incident.updated_at >= started
    if incident.kind == "ended" or not (
        incident.status == "open" or incident.outlasted or incident.unwatched
    ):
        return False
    return incident.resolved_at is None or incident.resolved_at >= started


def with_recorded(diagnosis: Diagnosis, known: Recorded) -> Diagnosis:
    """Complete the diagnosis of the logs with facts that only the recorded incidents show."""
    notes: list[Text] = []
    if known.stall is not None:
        diagnosis = _with_stall(diagnosis, known.stall)
        silence = duration_text(known.stall.stalled_seconds or 0.0)
        at = iso(known.stall.opened_at)
        how = "stall-is-open" if known.stall_continues else "stall-was-open"
        notes.append(message(f"diagnosis.{how}", time=at or "", silence=silence))
    for incident in known.findings:
        if any(finding.rule == incident.rule for finding in diagnosis.findings):
            continue  # the log shows this finding and its outcome
        what = incident.note or _last_printed(incident)
        at = iso(incident.opened_at)
        notes.append(message("diagnosis.finding-was-open", time=at or "", what=what))
        if incident.harm == "fatal" and not diagnosis.in_trouble and not _went_on(diagnosis, incident):
            diagnosis = _failed(diagnosis, incident.primary)
    if known.end is not None:
        diagnosis = _with_end(diagnosis, known.end)
        at = iso(known.end.updated_at) or ""
        notes.append(message("diagnosis.ending-told", time=at, what=_last_printed(known.end)))
    shown = diagnosis.primary
    if known.elsewhere is not None and not diagnosis.unknown and (shown is None or shown.role == "symptom"):
        # The files of a lost host are not available, so the cause names no log file.
        host, primary = known.elsewhere.host, known.elsewhere.primary
        diagnosis = _failed(diagnosis, primary and replace(primary, host=host, file="", line=0))
        notes.append(message("diagnosis.cause-elsewhere", host=host))
    notes += diagnosis.notes
    notes += known.lacking
    if known.watched:
        notes.append(message("diagnosis.still-watched"))
        if known.stall is None and known.quiet is not None:
            silence_now, threshold = known.quiet
            notes.append(message("diagnosis.watched-quiet", silence=silence_now, threshold=threshold))
    elif known.unheard is not None:
        notes.append(message("diagnosis.agent-gone", time=iso(known.unheard) or ""))
    return replace(diagnosis, notes=notes)


def with_lost_hosts(diagnosis: Diagnosis, known: Recorded, catalogue: Catalogue) -> Diagnosis:
    """If the logs show only that peers were lost, name the hosts that did not report as the cause."""
    shown = diagnosis.primary
    if diagnosis.unknown or (shown is not None and not is_of_peers(shown, catalogue)):
        return diagnosis
    cause = host_gone(known.gone, shown) if shown is not None and known.gone else known.absence
    if cause is None:
        return diagnosis
    notes = [note for note in diagnosis.notes if not contains_message(note, *_ABOUT_LOST)]
    return replace(_failed(diagnosis, cause), notes=notes)


def _last_printed(incident: Incident) -> Text:
    """Return the last line in an incident's evidence that the run printed and that is not a stack frame."""
    printed = [line for line in incident.evidence if isinstance(line, Message) or not line.startswith("  ")]
    return printed[-1] if printed else incident.rule


def _with_end(diagnosis: Diagnosis, end: Incident) -> Diagnosis:
    """If the copies of the logs show no cause, add the cause that was known when the run ended."""
    shown = diagnosis.primary is not None and diagnosis.primary.evidence
    if end.primary is None or shown or diagnosis.unknown:
        return diagnosis
    return _failed(diagnosis, end.primary)


def _failed(diagnosis: Diagnosis, primary: Primary | None) -> Diagnosis:
    """Return the diagnosis as a failure with this cause.

    An interruption with the same rule stays an interruption.
    """
    same = diagnosis.primary is not None and primary is not None and diagnosis.primary.rule == primary.rule
    if diagnosis.verdict == "interrupted" and same:
        return replace(diagnosis, primary=primary)
    return replace(diagnosis, verdict="failed", primary=primary, interrupted_by=None)


def _with_stall(diagnosis: Diagnosis, stall: Incident) -> Diagnosis:
    """Add the cause or the advice that the agent obtained from the probe or the processes during a stall."""
    primary = diagnosis.primary
    if stall.primary is None or (primary is not None and primary.rule != SILENT_HANG):
        return diagnosis
    if stall.primary.rule != SILENT_HANG and stall.primary.harm == "fatal":
        return replace(diagnosis, primary=stall.primary)
    if primary is None:
        return diagnosis
    # A reason that differs from the text of the rule page concerns this run. Version 0.1 stored plain text.
    why = stall.primary.why
    of_this_run = why.id != PAGE if isinstance(why, Message) else not contains(primary.why, why)
    if not of_this_run:
        return diagnosis
    primary = replace(primary, why=stall.primary.why, fixes=stall.primary.fixes)
    return replace(diagnosis, primary=primary)


def _went_on(diagnosis: Diagnosis, incident: Incident) -> bool:
    """Return whether the logs show later steps, which means that the run continued after the incident.

    After the loss of a rank, later steps do not count, because they are steps of other ranks.
    """
    last = diagnosis.progress.last_step
    if incident.rule == RANK_GONE or last is None or incident.step is None:
        return False
    return last > incident.step


def with_kept(diagnosis: Diagnosis, known: Recorded) -> Diagnosis:
    """Add the steps that ranks reported to the agent, because the log might not contain these steps.

    If the copies of the output no longer show the cause, return the diagnosis made when the run ended. Copies
    might have been deleted. They might also have been truncated because the disk was full.
    """
    diagnosis = _with_other_hosts(diagnosis, known.last_step)
    if known.folder is None:
        return diagnosis
    kept = read_diagnosis(known.folder)
    if kept is None:
        return diagnosis
    left, seen = diagnosis.stats.lines, kept.stats.lines
    # If there is no evidence, only the end of the run is known.
    shown = diagnosis.primary is not None and diagnosis.primary.evidence
    nothing_kept = diagnosis.stats.files and kept.primary is None and not kept.unknown
    if shown or diagnosis.unknown or left >= seen or nothing_kept:
        return diagnosis if diagnosis.hosts else _with_steps(diagnosis, kept)
    note = message("diagnosis.kept-diagnosis", left=f"{left:,}", seen=f"{seen:,}")
    return replace(kept, notes=[note, *kept.notes, *known.lacking])


def _with_other_hosts(diagnosis: Diagnosis, last_step: int | None) -> Diagnosis:
    """If the log that contains the steps ends before the run does, add `last_step` to the diagnosis.

    Ignore a `last_step` beyond the total, because ranks can count more steps than the log, such as each step
    of gradient accumulation.
    """
    progress = diagnosis.progress
    if last_step is None or progress.last_step is None:
        return diagnosis
    notes = [note for note in diagnosis.notes if not contains_message(note, "diagnosis.finished-early")]
    if progress.last_step < last_step <= (progress.total_steps or last_step):
        progress = replace(progress, last_step=last_step)
    return replace(diagnosis, notes=notes, progress=progress)


def _with_steps(diagnosis: Diagnosis, kept: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the steps and the loss from the diagnosis made when the run ended."""
    seen, primary = kept.progress, diagnosis.primary
    if seen.last_step is None:
        return diagnosis
    progress = replace(
        diagnosis.progress,
        first_step=seen.first_step,
        last_step=seen.last_step,
        total_steps=diagnosis.progress.total_steps if seen.total_steps is None else seen.total_steps,
        last_loss=diagnosis.progress.last_loss if seen.last_loss is None else seen.last_loss,
        stalled_after_step=None if diagnosis.progress.stalled_after_step is None else seen.last_step,
    )
    if primary is not None and kept.primary is not None and primary.rule == kept.primary.rule:
        primary = replace(primary, step=kept.primary.step)
    return replace(diagnosis, progress=progress, primary=primary)


def without_copies(diagnosis: Diagnosis, problems: list[InputProblem], folders: Sequence[Path]) -> Diagnosis:
    """If the outcome of the run is known, remove the problems of hosts that have no readable logs.

    The outcome is known from the logs of other hosts, or from the record of the run.
    """
    if not (diagnosis.stats.files or diagnosis.in_trouble):
        return diagnosis
    if diagnosis.stats.files:  # other hosts have logs, so a host without logs printed nothing
        missing = [problem for problem in problems if Path(problem.path) in folders]
    else:
        missing = [problem for problem in problems if any(map(Path(problem.path).is_relative_to, folders))]
    problems[:] = [problem for problem in problems if problem not in missing]
    words = set(map(str, missing))
    notes: list[Text] = [note for note in diagnosis.notes if not isinstance(note, str) or note not in words]
    if folders and not diagnosis.stats.files:
        notes.append(message("diagnosis.no-copies"))
    return replace(diagnosis, notes=notes)
