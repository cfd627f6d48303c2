"""Write the notes of a diagnosis: uncertain observations that supplement the verdict."""

from __future__ import annotations

from stallwatch_rules.diagnosis.awaited import did_not_report, is_only_waiting, suspects
from stallwatch_rules.diagnosis.exits import ended_by_itself, ended_silently
from stallwatch_rules.diagnosis.hosts import RunHosts
from stallwatch_rules.diagnosis.particulars import is_named
from stallwatch_rules.diagnosis.restarts import restarts_note
from stallwatch_rules.diagnosis.snapshot import Assessment, RunContext, Snapshot
from stallwatch_rules.diagnosis.uneven import Uneven, ranks_held_up, ranks_left_behind, uneven_end
from stallwatch_rules.diagnosis.verdict import END_REQUESTED
from stallwatch_rules.failures.flight import flight_note, watchdog_positions
from stallwatch_rules.judgements.conclusions import SILENT_HANG, STANDSTILLS
from stallwatch_rules.judgements.standstill import note_on_manual_stop
from stallwatch_rules.messages import Message, Text, has, message
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.text.digest import natural_order, some_ranks
from stallwatch_rules.text.display import shown

MAX_CLOCKS = 4  #: maximum number of hosts whose clock offset is named


def notes_of(
    diagnosis: Diagnosis, run: Snapshot, now: Assessment, other_runs: Text, held_up: Uneven | None
) -> list[Text]:
    """Return the notes, most useful first. Also store in the diagnosis which ranks are behind.

    `other_runs` is the note about files from different runs, if any. `held_up` contains the ranks that the
    primary cause names because they hold up a stalled run.
    """
    exceptions, tracker, context = now.exceptions, run.tracker, run.context
    notes: list[Text] = [_clocks_note(run.hosts)] if run.hosts.ahead else []
    progress = diagnosis.progress
    chosen = diagnosis.primary
    if exceptions.own_failures and chosen is not None and not chosen.inferred:
        text = exceptions.records()[0]
        if text.exception:
            notes.append(message("diagnosis.unknown-may-be-cause", exception=shown(text.described)))
        else:
            at = f"{text.first.file}:{text.first.line}"
            notes.append(message("diagnosis.cut-may-be-cause", at=at))
    if chosen is not None and chosen.role == "symptom" and not is_named(chosen):
        waits = is_only_waiting(chosen, run.catalogue)
        absent = (suspects if waits else did_not_report)(chosen.rule, run, now)
        if absent and chosen.rank not in absent:
            notes.append(message("diagnosis.absent-ranks", ranks=some_ranks(absent)))
    if chosen is not None and chosen.role == "wrapper" and chosen.harm == "fatal":
        notes.append(ended_silently(run, now))
    notes.append(other_runs)
    explained = chosen is not None and chosen.role == "cause" and chosen.rule not in STANDSTILLS
    # A finding with an activity already names the busy rank.
    explained = explained or (chosen is not None and "activity" in chosen.captures)
    if not explained and any(finding.tagged("flight-data") for finding in now.fatal):
        notes.append(flight_note(watchdog_positions(run.streams)))
    uneven = held_up
    if uneven is None and diagnosis.in_trouble and not progress.finished:
        uneven = uneven_end(run.streams, run.last_steps)
    uneven = uneven or (None if other_runs else ranks_left_behind(run.streams))
    if uneven is not None:
        progress.behind = sorted(uneven.behind)
        notes += [uneven.note()] if uneven is not held_up else []
    if diagnosis.verdict == "unknown-failure" and not exceptions.fatal:
        # The error line at the end of the log is the only evidence.
        bare = context.failed is None and context.ending is None and not now.found
        by_itself = ended_by_itself(run, now) if chosen is None else ""
        if not has(by_itself, "diagnosis.ended-with-message"):
            notes.append(message("diagnosis.ends-in-error" if bare else "diagnosis.no-rule"))
        notes.append(by_itself)
    elif chosen is not None and chosen.rule == SILENT_HANG:
        by_itself = ended_by_itself(run, now)
        notes += [by_itself] if has(by_itself, "diagnosis.ended-with-message") else []
    if diagnosis.verdict in ("failed", "unknown-failure") and progress.finished:
        notes.append(message("diagnosis.training-was-complete"))
    fine = not diagnosis.in_trouble and diagnosis.verdict != "no-training-log"
    if run.by_hand and fine:
        waited = None if progress.finished else _waited(run, now)
        late = note_on_manual_stop(waited, tracker.durations(), tracker.step_seconds())
        notes.append(late or message("diagnosis.interrupted"))
    elif (
        request := next((finding.where for finding in now.found if END_REQUESTED in finding.facts), None)
    ) is not None:
        at = f"{request.source}:{request.number}"
        notes.append(message("diagnosis.asked-to-end-line", line=shown(request.text), at=at))
    elif fine and _ends_open(diagnosis, context):
        step, total = progress.last_step, progress.total_steps
        known = {"step": step or 0, "total": total} if total else {"step": step or 0}
        notes.append(message("diagnosis.just-ends" if total else "diagnosis.just-ends-somewhere", **known))
        first = None if other_runs or uneven else ranks_held_up(run.streams, run.last_steps)
        notes.append(first.note("behind-if-hanging") if first is not None else "")
        if tracker.phase == "eval":
            notes.append(message("diagnosis.ends-in-evaluation"))
    elif fine and context.kind == "finished" and progress.stops_early:
        step, total = progress.last_step or 0, progress.total_steps or 0
        notes.append(message("diagnosis.finished-early", step=step, total=total))
    if diagnosis.verdict == "no-evidence":
        notes.append(message("diagnosis.no-evidence"))
    notes.append(restarts_note(run.restarts, now))
    return [note for note in notes if note]


def _clocks_note(hosts: RunHosts) -> Text:
    """Return the note on hosts whose clocks are wrong. The host with the largest offset comes first."""
    farthest = sorted(hosts.ahead.items(), key=lambda item: (-abs(item[1]), natural_order(item[0])))
    clocks: list[str | Message] = [
        message("diagnosis.clock-ahead" if by > 0 else "diagnosis.clock-behind", host=host, by=abs(by))
        for host, by in farthest[:MAX_CLOCKS]
    ]
    if len(farthest) > MAX_CLOCKS:
        clocks.append(message("diagnosis.clocks-more", count=len(farthest) - MAX_CLOCKS))
    return message("diagnosis.clocks-off", clocks=clocks)


def _waited(run: Snapshot, now: Assessment) -> float | None:
    """Return the number of seconds between the last step and the stop of the run, or ``None`` if unknown."""
    if run.tracker.phase != "train":
        return None
    if run.context.waited is not None:
        return run.context.waited
    if run.clock.last_sign is None:
        return None
    interrupts = [
        place.time for finding in now.found if finding.tagged("interrupt") for place in finding.occurrences
    ]
    end = min((time for time in interrupts if time is not None), default=run.context.ended_at)
    return run.clock.silence if end is None else end - run.clock.last_sign


def _ends_open(diagnosis: Diagnosis, context: RunContext) -> bool:
    """Return whether the log of an unwatched run shows steps but not the end of the training."""
    progress = diagnosis.progress
    if context.ending is not None or context.now is not None or context.watched:
        return False
    if progress.last_step is None or progress.finished or diagnosis.verdict == "no-evidence":
        return False
    return not progress.total_steps or progress.last_step < progress.total_steps
