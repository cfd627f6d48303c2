"""Read the record in a run's folder: the ending, open incidents, the last stall's stacks, the diagnosis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stallwatch_exporter.incident import RANK_GONE, Incident
from stallwatch_exporter.watching.incidents import last_states, read_incidents, read_journal
from stallwatch_logs.inputs import InputProblem
from stallwatch_rules.decoding import from_json
from stallwatch_rules.endings import Ending
from stallwatch_rules.files import open_regular
from stallwatch_rules.judgements.conclusions import SILENT_HANG, STRAGGLER
from stallwatch_rules.locale import contains_message
from stallwatch_rules.messages import PAGE, Message, Text, contains, message
from stallwatch_rules.records import Diagnosis, Primary
from stallwatch_rules.stacks.folding import by_host, over_hosts
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.spans import host_of
from stallwatch_rules.text.digest import fold_names, short_duration
from stallwatch_rules.text.display import iso
from stallwatch_rules.text.foreign_json import NOT_JSON

if TYPE_CHECKING:
    from stallwatch_exporter.runs.runfolder import AgentInfo

_NEAR_SECONDS = 60.0  # torchrun waits up to 30 seconds for ranks to end after SIGTERM
_BY_PEERS = (-15, -6)  # sent by other processes: SIGTERM by a launcher, SIGABRT by NCCL's watchdog


class Recorded(NamedTuple):
    """Recorded facts about the end of a run that Stallwatch watched."""

    folder: Path | None = None  #: folder of the run, if the agent observed its end and stored a diagnosis
    ending: Ending | None = None
    ended_at: float | None = None  #: Unix seconds
    waited: float | None = None  #: seconds without a step when the run stalled or was stopped by the user
    stall: Incident | None = None  #: stall that is open, or was open when the run or the agent ended
    stall_continues: bool = False  #: the agent that reported the stall still watches it
    quiet: tuple[float, float] | None = None  #: seconds without progress of a watched run, and its threshold
    findings: Sequence[Incident] = ()  #: open fatal findings, and slow hosts
    watched: bool = False  #: the agent still watches the run
    end: Incident | None = None  #: incident of the run's end, if the record itself lacks the end
    threshold: float | None = None  #: threshold, in seconds, of the run's last phase
    unheard: float | None = None  #: Unix time of the last report of an agent that ended before the run
    stacks: StallStacks | None = None  #: stacks of the last stall, if the run did not recover from it
    lacking: Sequence[Message] = ()  #: notes on missing parts of the record
    info: AgentInfo | None = None  #: record of the agent itself
    elsewhere: Incident | None = None  #: cause on a host without a record, reported by the other agents
    versions: Mapping[int, Mapping[str, str]] = {}  #: rank → versions of the packages that it imported


def recorded(folders: Sequence[Path], ahead: Mapping[str, float] | None = None) -> Recorded:
    """Return the facts about a run that Stallwatch stored in these folders, one folder per agent.

    `ahead` maps hosts to the seconds by which their clocks are ahead of most other clocks, if known.
    """
    parts = [_of_agent(folder) for folder in folders]
    merged = _merged_incidents(folders)
    if len(parts) > 1 or (parts and _had_others(parts[0], merged)):
        return _of_run(merged, parts, ahead or {})
    return parts[0] if parts else Recorded()


def _had_others(part: Recorded, merged: Sequence[Incident]) -> bool:
    """Return whether agents on other hosts sent reports to this agent, even if their records are missing."""
    hosts = {host for one in merged for host in (one.host, *one.hosts) if host}
    return part.info is not None and bool(hosts - {part.info.host_in_run})


def _of_agent(given: Path) -> Recorded:
    # Import here, because most logs are not in a run folder.
    from stallwatch_exporter.runs.runfolder import agent_alive, latest_folder, read_info

    folder = latest_folder(given)
    incidents, info = read_incidents(folder), read_info(folder)
    if folder != given:
        incidents = list({one.id: one for one in (*read_incidents(given), *incidents)}.values())
    versions = dict(_versions(folder))
    stalls = sorted((one for one in incidents if one.kind == "stall"), key=lambda one: one.opened_at)
    stacks = stalls[-1].stacks if stalls and stalls[-1].resolution != "recovered" else None
    if info is None:
        return Recorded(stacks=stacks, versions=versions)
    stall = next((one for one in reversed(stalls) if _was_open(one, info.started_at)), None)
    left = [one for one in incidents if _was_open(one, info.started_at)]
    findings = [one for one in left if one.began_as[0] == "finding" and one.harm == "fatal"]
    watching = info.ending is None and agent_alive(info)
    end = None if info.ending is not None or watching else recorded_end(incidents, info.started_at)
    known = info.ending or (end.ending if end is not None else None)
    threshold = stall.threshold_seconds if stall is not None else info.threshold
    if known is not None and known.failed is False:
        stall, findings = None, []
    quiet = None
    if stall is not None and watching:  # both times are of the agent's clock
        lasted = max(stall.stalled_seconds or 0.0, info.updated_at - stall.quiet_since)
        stall = msgspec.structs.replace(stall, stalled_seconds=lasted)
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
    if known is None:  # the agent was killed, or is still running
        return found._replace(watched=watching, unheard=None if watching else info.updated_at)
    seen = folder if info.ending is not None else None
    return found._replace(folder=seen, ended_at=info.ended_at, end=end)


def _versions(folder: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield each rank that reported the versions of its packages, with these versions."""
    from stallwatch_exporter.watching.probe_events import versions_in

    with suppress(OSError), open_regular(folder / "events.jsonl") as lines:
        for line in lines:
            if b'"versions"' not in line:  # most events are of other kinds, and a long run has many
                continue
            with suppress(*NOT_JSON):  # skip a truncated line
                event = from_json(line, dict[str, Any])
                if event.get("kind") == "versions" and isinstance(rank := event.get("rank"), int):
                    yield rank, versions_in(event)


def _of_run(merged: Sequence[Incident], parts: Sequence[Recorded], ahead: Mapping[str, float]) -> Recorded:
    """Merge the records of the agents on several hosts.

    The ending of the run is the ending on the host that failed first.
    """

    def when(recorded: Recorded) -> float:
        if recorded.info is None:
            return math.inf
        return (recorded.ended_at or recorded.info.updated_at) - ahead.get(recorded.info.host_in_run, 0.0)

    def opened(incident: Incident) -> float:
        return incident.opened_at - ahead.get(incident.host, 0.0)

    hosts = {one.info.host_in_run for one in parts if one.info is not None}
    if len(hosts) > 1:
        parts = [_on_host(one, one.info.host_in_run) if one.info is not None else one for one in parts]
    parts = sorted(parts, key=when)
    first = _first_to_fail(parts, when)
    if first.ending is not None and first.ending.failed:  # hosts that stalled later waited for this host
        parts = [
            one._replace(stall=None, stacks=None)
            if one.stall is not None and opened(one.stall) > when(first)
            else one
            for one in parts
        ]
    stacks = _stacks_of_all(parts, merged)
    guilty = {host_of(rank, stacks.hosts) for rank in stacks.odd} if stacks is not None else set()

    stalls = [one.stall for one in parts if one.stall is not None]
    stall = min(stalls, key=lambda one: (one.host not in guilty, opened(one)), default=None)
    findings: dict[tuple[str, str], Incident] = {}
    for finding in sorted((one for part in parts for one in part.findings), key=opened):
        findings.setdefault((finding.rule, finding.host if finding.rule == RANK_GONE else ""), finding)
    ending = first.ending
    if ending is not None and ending.failed is False:
        stall, findings = None, {}
    if ending is not None:
        every = [one.ending for one in (first, *parts) if one.ending is not None]
        codes: dict[int, int | None] = {}
        for rank, code in (item for one in every for item in one.codes.items()):
            codes.setdefault(rank, code)
        left = list(dict.fromkeys(rank for one in every for rank in one.left))
        running = list(dict.fromkeys(rank for one in every for rank in one.running))
        ending = msgspec.structs.replace(ending, codes=codes, left=left, running=running)
    slow = [one for one in merged if one.rule == STRAGGLER and one.resolution != "recovered"]
    notes = [*_host_notes(first, parts, merged), *(note for one in parts for note in one.lacking)]
    elsewhere = [one for one in merged if one.outlasted and one.host and one.host not in hosts]
    causes = [one for one in elsewhere if one.primary is not None and _is_fatal_cause(one.primary)]
    unheard = [one.unheard for one in parts if one.unheard is not None]
    return Recorded(
        folder=first.folder,
        ending=ending,
        ended_at=when(first) if first.ended_at is not None else None,
        waited=stall.stalled_seconds if stall is not None else first.waited,
        stall=stall,
        stall_continues=any(one.stall_continues for one in parts if stall is not None and one.stall is stall),
        quiet=min((one.quiet for one in parts if one.quiet is not None), default=None),
        findings=[*findings.values(), *slow],
        watched=any(one.watched for one in parts),
        end=first.end,
        threshold=first.threshold if stall is None else stall.threshold_seconds,
        unheard=max(unheard, default=None) if ending is None else None,
        stacks=stacks,
        lacking=[note for at, note in enumerate(notes) if note not in notes[:at]],
        info=first.info,
        elsewhere=causes[-1] if causes and ending is not None and ending.failed is not False else None,
        versions={rank: found for part in parts for rank, found in part.versions.items()},
    )


def _is_fatal_cause(primary: Primary) -> bool:
    return primary.role == "cause" and primary.harm == "fatal"


def _on_host(part: Recorded, host: str) -> Recorded:
    """Return the record, with `host` set as the host of its incidents and of their causes."""

    def placed(incident: Incident) -> Incident:
        primary = incident.primary
        primary = msgspec.structs.replace(primary, host=host) if primary is not None else None
        return msgspec.structs.replace(incident, host=host, primary=primary)

    return part._replace(
        stall=placed(part.stall) if part.stall is not None else None,
        findings=[placed(one) for one in part.findings],
        end=placed(part.end) if part.end is not None else None,
    )


def _first_to_fail(parts: Sequence[Recorded], when: Callable[[Recorded], float]) -> Recorded:
    """Return the host that failed first.

    If no host failed, return a host that has not finished, or the host that finished last.

    After a rank is lost, other hosts fail within moments, and launchers wait for their other ranks before
    they end. Therefore, a rank that a signal ended takes precedence over ranks that ended with an error
    afterward.
    """
    failed = [one for one in parts if one.ending is not None and one.ending.failed]
    if failed:
        near = [one for one in failed if when(one) - when(failed[0]) <= _NEAR_SECONDS]
        return next((one for one in near if one.ending is not None and _was_killed(one.ending)), failed[0])
    unfinished = [one for one in parts if one.ending is not None and one.ending.failed is None]
    known = [one for one in parts if one.ending is not None]
    return next(iter([*unfinished, *reversed(known), *parts]))


def _was_killed(ending: Ending) -> bool:
    if ending.kind == "killed":
        return not _passed_signal_on(ending)
    first = next(iter(ending.codes.values()), None)
    return ending.kind == "oom-killed" or (first is not None and first < 0 and first not in _BY_PEERS)


def _passed_signal_on(ending: Ending) -> bool:
    return contains_message(ending.detail, "run.passed-on")


def _merged_incidents(folders: Sequence[Path]) -> list[Incident]:
    """Return the last state of each incident of the run, oldest first.

    The incidents are from the folders of the agents that merged the run.
    """
    from stallwatch_exporter.runs.runfolder import RUN_INCIDENTS

    return last_states(one for folder in folders for one in read_journal(folder, name=RUN_INCIDENTS))


def _stacks_of_all(parts: Sequence[Recorded], merged: Sequence[Incident]) -> StallStacks | None:
    """Return the stacks of all hosts at the last stall.

    The agents combined the stacks of all hosts during the run. If combining the stacks in the records of the
    hosts gives a more certain result, that result is returned instead.
    """
    # An incident that an agent sent alone has no hosts, and stacks only from the agent's host.
    last = next((one for one in reversed(merged) if one.hosts and one.stacks is not None), None)
    live = last.stacks if last is not None and last.resolution != "recovered" else None
    own = by_host(
        (one.info.host_in_run, one.stacks) for one in parts if one.info is not None and one.stacks is not None
    )
    if not own:
        return live
    joined = over_hosts(own)
    return live if live is not None and live.confidence >= joined.confidence else joined


def _host_notes(first: Recorded, parts: Sequence[Recorded], merged: Sequence[Incident]) -> Iterator[Message]:
    """Yield notes on the host that failed first, and on hosts without a record or without an ending."""
    infos = [one.info for one in parts if one.info is not None]
    hosts = {info.host_in_run for info in infos}
    named = {host for one in merged for host in one.hosts}
    looks = [one.stacks for one in merged if one.stacks is not None]
    named |= {host for stacks in looks for host in (*stacks.hosts, *stacks.silent)}
    expected = max((info.agents or 0 for info in infos), default=0)
    itself = first.ending is not None and first.ending.failed and not _passed_signal_on(first.ending)
    if missing := named - hosts:
        yield message("diagnosis.hosts-without-record", hosts=fold_names(missing))
    elif expected > len(infos):
        yield message("diagnosis.agents-without-record", count=len(infos), expected=expected)
    elif first.info is not None and itself and len(hosts) > 1:
        yield message("diagnosis.first-host", host=first.info.host_in_run)
    gone = [one.info for one in parts if one.info is not None and one.unheard is not None]
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
    """Return the incident of a run's end, if it was reported after the last agent started (at `started`)."""
    ends = [one for one in incidents if one.kind == "ended" and one.ending and one.updated_at >= started]
    return max(ends, key=lambda one: one.updated_at, default=None)


def _was_open(incident: Incident, started: float) -> bool:
    """Return whether the incident was still unresolved when the run ended.

    If an incident was closed before the last agent started (at `started`), that agent would have reopened it.
    """
    if incident.became_end:
        return incident.updated_at >= started
    if incident.kind == "ended" or not (
        incident.status == "open" or incident.outlasted or incident.unwatched
    ):
        return False
    return incident.resolved_at is None or incident.resolved_at >= started


def with_recorded(diagnosis: Diagnosis, known: Recorded) -> Diagnosis:
    """Add facts to the diagnosis of the logs that only the recorded incidents show."""
    notes: list[Text] = []
    if known.stall is not None:
        diagnosis = _with_stall(diagnosis, known.stall)
        silence = short_duration(known.stall.stalled_seconds or 0.0)
        at = iso(known.stall.opened_at)
        how = "stall-is-open" if known.stall_continues else "stall-was-open"
        notes.append(message(f"diagnosis.{how}", time=at or "", silence=silence))
    for incident in known.findings:
        if any(one.rule == incident.rule for one in diagnosis.findings):
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
    if known.elsewhere is not None and _shows_symptoms(diagnosis):
        diagnosis = _failed(diagnosis, _of_lost_host(known.elsewhere))
        notes.append(message("diagnosis.cause-elsewhere", host=known.elsewhere.host))
    notes += diagnosis.notes
    notes += known.lacking
    if known.watched:
        notes.append(message("diagnosis.still-watched"))
        if known.stall is None and known.quiet is not None:
            silence_now, threshold = known.quiet
            notes.append(message("diagnosis.watched-quiet", silence=silence_now, threshold=threshold))
    elif known.unheard is not None:
        notes.append(message("diagnosis.agent-gone", time=iso(known.unheard) or ""))
    return msgspec.structs.replace(diagnosis, notes=notes)


def _last_printed(incident: Incident) -> Text:
    """Return the last line in an incident's evidence that the run printed and that is not a stack frame."""
    printed = [line for line in incident.evidence if isinstance(line, Message) or not line.startswith("  ")]
    return next(iter(printed[-1:]), incident.rule)


def _with_end(diagnosis: Diagnosis, end: Incident) -> Diagnosis:
    """Add the cause that was known when the run ended, if the copies of the logs show no cause."""
    shown = diagnosis.primary is not None and diagnosis.primary.evidence
    if end.primary is None or shown or diagnosis.unknown:
        return diagnosis
    return _failed(diagnosis, end.primary)


def _shows_symptoms(diagnosis: Diagnosis) -> bool:
    primary = diagnosis.primary
    return not diagnosis.unknown and (primary is None or primary.role == "symptom")


def _of_lost_host(incident: Incident) -> Primary | None:
    """Return the cause that the agent of a lost host reported.

    The cause names no log file, because the files of that host are not available.
    """
    primary = incident.primary
    return primary and msgspec.structs.replace(primary, host=incident.host, file="", line=0)


def _failed(diagnosis: Diagnosis, primary: Primary | None) -> Diagnosis:
    """Return the diagnosis, changed to a failure with this cause.

    If the diagnosis is an interruption with the same rule, it stays an interruption.
    """
    same = diagnosis.primary is not None and primary is not None and diagnosis.primary.rule == primary.rule
    if diagnosis.verdict == "interrupted" and same:
        return msgspec.structs.replace(diagnosis, primary=primary)
    return msgspec.structs.replace(diagnosis, verdict="failed", primary=primary, interrupted_by=None)


def _with_stall(diagnosis: Diagnosis, stall: Incident) -> Diagnosis:
    """Add the cause or the advice that the agent found in a stall, from the probe or the processes."""
    primary = diagnosis.primary
    if stall.primary is None or (primary is not None and primary.rule != SILENT_HANG):
        return diagnosis
    if stall.primary.rule != SILENT_HANG and stall.primary.harm == "fatal":
        return msgspec.structs.replace(diagnosis, primary=stall.primary)
    if primary is None:
        return diagnosis
    # Any text other than the rule page's is about this run. Version 0.1 stored plain text.
    why = stall.primary.why
    of_this_run = why.id != PAGE if isinstance(why, Message) else not contains(primary.why, why)
    if not of_this_run:
        return diagnosis
    primary = msgspec.structs.replace(primary, why=stall.primary.why, fixes=stall.primary.fixes)
    return msgspec.structs.replace(diagnosis, primary=primary)


def _went_on(diagnosis: Diagnosis, incident: Incident) -> bool:
    """Return whether the logs show that the run continued after the incident, because they show later steps.

    For the incident of a lost rank, return False, because the later steps are those of other ranks.
    """
    last = diagnosis.progress.last_step
    if incident.rule == RANK_GONE or last is None or incident.step is None:
        return False
    return last > incident.step


def with_kept(diagnosis: Diagnosis, known: Recorded) -> Diagnosis:
    """Return the diagnosis with the steps that ranks reported to the agent, which the log may not show.

    If the copies of the output no longer show the cause, return the diagnosis made when the run ended. Copies
    are truncated if the disk is full, and missing if the user deleted them.
    """
    if known.folder is None:
        return diagnosis
    from stallwatch_exporter.runs.runfolder import read_diagnosis

    kept = read_diagnosis(known.folder)
    if kept is None:
        return diagnosis
    left, seen = diagnosis.stats.lines, kept.stats.lines
    shown = diagnosis.primary is not None and diagnosis.primary.evidence  # otherwise, only the end is known
    nothing_kept = diagnosis.stats.files and kept.primary is None and not kept.unknown
    if shown or diagnosis.unknown or left >= seen or nothing_kept:
        return diagnosis if diagnosis.hosts else _with_steps(diagnosis, kept)
    note = message("diagnosis.kept-diagnosis", left=f"{left:,}", seen=f"{seen:,}")
    return msgspec.structs.replace(kept, notes=[note, *kept.notes, *known.lacking])


def _with_steps(diagnosis: Diagnosis, kept: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the steps and the loss from the diagnosis made when the run ended."""
    seen, primary = kept.progress, diagnosis.primary
    if seen.last_step is None:
        return diagnosis
    progress = msgspec.structs.replace(
        diagnosis.progress,
        first_step=seen.first_step,
        last_step=seen.last_step,
        total_steps=diagnosis.progress.total_steps if seen.total_steps is None else seen.total_steps,
        last_loss=diagnosis.progress.last_loss if seen.last_loss is None else seen.last_loss,
        stalled_after_step=None if diagnosis.progress.stalled_after_step is None else seen.last_step,
    )
    if primary is not None and kept.primary is not None and primary.rule == kept.primary.rule:
        primary = msgspec.structs.replace(primary, step=kept.primary.step)
    return msgspec.structs.replace(diagnosis, progress=progress, primary=primary)


def without_copies(diagnosis: Diagnosis, problems: list[InputProblem], folders: Sequence[Path]) -> Diagnosis:
    """Remove the problems of hosts without readable logs if the outcome of the run is known anyway.

    The outcome is known from the logs of other hosts, or from the record of the run.
    """
    if not (diagnosis.stats.files or diagnosis.in_trouble):
        return diagnosis
    if diagnosis.stats.files:  # some hosts printed no output
        missing = [one for one in problems if Path(one.path) in folders]
    else:
        missing = [one for one in problems if any(map(Path(one.path).is_relative_to, folders))]
    problems[:] = [one for one in problems if one not in missing]
    words = set(map(str, missing))
    notes: list[Text] = [note for note in diagnosis.notes if not isinstance(note, str) or note not in words]
    if folders and not diagnosis.stats.files:
        notes.append(message("diagnosis.no-copies"))
    return msgspec.structs.replace(diagnosis, notes=notes)
