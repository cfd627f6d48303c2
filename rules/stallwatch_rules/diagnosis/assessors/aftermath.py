"""Find the consequences of a failure or of a run's normal end, and find the rank that failed first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from stallwatch_rules.diagnosis.exceptions import Unknown
from stallwatch_rules.diagnosis.exits import (
    ENDED_WITH,
    MOST_STATUS,
    SIGTERM,
    ended_first,
    ended_silently,
    ended_well,
    ended_with,
    failures_of_lost_peers,
    lost_peers,
)
from stallwatch_rules.diagnosis.findings import RuleFinding, came_before, concluded
from stallwatch_rules.diagnosis.snapshot import Assessment, Change, RemovedFinding, Snapshot
from stallwatch_rules.diagnosis.unrelated import is_of_other_program
from stallwatch_rules.diagnosis.verdict import AT_EXIT, WITH_STATUS
from stallwatch_rules.endings import ExitedRank
from stallwatch_rules.judgements.conclusions import LEFT_EARLY
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.judgements.standstill import departures_sentence
from stallwatch_rules.messages import Text, message
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy

#: Tags of signals that can end a process during its teardown after a failure.
CRASHES: tuple[Tag, ...] = ("sigsegv", "sigbus")
#: Tags of signals whose reports do not contain a reason. Other lines of the log might contain the reason.
ITSELF: tuple[Tag, ...] = ("sigabrt", "other-signal")
UNCAUGHT = 1  #: exit status of Python after an uncaught exception; its traceback might be in a different log

#: Messages that glibc prints before an abort (malloc/malloc.c). They do not show which process aborted.
_HEAP = lazy(r"^(?:double free|free\(\): |malloc(?:_consolidate)?\(\): |munmap_chunk\(\): |corrupted )")
#: Messages in which shells, containers, and systemd report that a signal ended a process. This process might
#: be a helper.
_ANY_PROCESS = lazy(
    r": line \d+: +\d+ |\b[Cc]ode[:= ]+1[2-9]\d\b|^[A-Z][\w /-]{3,40}(?: ?\(core dumped\))?\s*$"
    r"|Main process exited, code=|^g?make(?:\[\d+\])?: |^zsh: "
    r"|Worker exits unexpectedly by a signal\..{0,120} The process receives a SIGTERM\."  # Ray's raylet
)
_EXIT_CODE = lazy(r"(?i)\bexit code[:= ]+1[2-9]\d\b")
#: The Slurm message about a task that failed on its own. The exit codes of a task that SIGINT, SIGKILL, or
#: SIGTERM ended (130, 137, and 143) are excluded, because canceled tasks have these codes.
_TASK_FAILED = lazy(r"Exited with exit code (?!(?:130|137|143)\b)[1-9]")


def aftermath(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Reclassify findings that are consequences of a failure as symptoms.

    Examples are the cancellation of a Slurm step after one of its tasks failed, a failed rendezvous after a
    node died or a launcher restarted its workers, and a segmentation fault during a process's teardown. A
    report that a peer was lost never explains the crash of that peer, even if the report comes before the
    crash. If such a consequence (for example, a report from Ray that a worker died) is already a symptom, the
    earlier failures explain this symptom.

    Example: ``STEP 88131.0 ON n1 CANCELLED`` after ``torch.OutOfMemoryError`` is a symptom.
    """
    removed = [RemovedFinding(finding.rule) for finding in _cancellations_by_scheduler(now)]
    yield from removed
    now = now.after(removed)
    for late in now.fatal:
        if not late.tagged("follows-failure") or not late.hits:
            continue
        others = {*run.catalogue.tagged("follows-failure"), *run.catalogue.tagged(SIGTERM)}
        others |= {*late.all_explained}
        raised = now.exceptions.fatal
        signal = next((tag for tag in CRASHES if late.tagged(tag)), None)
        if signal is not None:
            crashed = {rank for _, rank in late.hits if rank is not None}
            crashed |= ended_with(ENDED_WITH[signal], run.streams)
            others |= failures_of_lost_peers(now.found, crashed)
            raised = [
                exception
                for exception in raised
                if not exception.shows_teardown or exception.stream[1] in crashed
            ]
        failures = [finding for finding in now.found if finding.is_failure and finding.rule not in others]
        if late.role == "symptom":
            explaining = [*_with_consequence(failures, late)]
            yield from explaining
            now = now.after(explaining)
            continue
        # Processes that have trained were connected. Such processes lose the connection or reconnect only
        # after an earlier failure. The log of this earlier failure might be missing.
        again = late.tagged("connecting") and late.had_trained(run.tracker)
        if (
            again
            or any(came_before(finding, late) for finding in failures)
            or any(_raised_first(exception, late) for exception in raised)
        ):
            changed = replace(late, role="symptom")
        elif late.tagged("cancelled") and _task_failed_before(now, late):
            changed = replace(late, role="wrapper")
        else:
            continue
        yield changed
        now = now.after([changed])


def _with_consequence(failures: Iterable[RuleFinding], late: RuleFinding) -> Iterator[RuleFinding]:
    """Yield the failures that came before the symptom `late`, each with `late` as a consequence.

    Findings about a lost peer are excluded, because the peer can be the process whose death `late` reports.
    """
    for finding in failures:
        if not finding.tagged("peer-gone") and (came_before(finding, late) or _is_above(finding, late)):
            yield replace(finding, explains=(*finding.explains, late.rule))


def _is_above(finding: RuleFinding, late: RuleFinding) -> bool:
    """Return whether a launcher reported `late` after the lines of a finding, in lines that name no rank.

    The lines of several ranks can be out of order in a log, but a launcher reports the end of a process after
    the process has printed its last lines.
    """
    own = [hits.first.line for hits in finding.hits.values()]
    if any(rank is not None for _, rank in late.hits) or not own:
        return False
    timed = [*(place.time for place in finding.occurrences), *(place.time for place in late.occurrences)]
    if None not in timed:  # all times are known, so the order of the lines does not count
        return False
    return _each_is_below(late, own)


def _each_is_below(late: RuleFinding, lines: Sequence[Line]) -> bool:
    """Return whether, in each stream, `late` first matched after one of `lines` in the same file."""
    firsts = [hits.first.line for hits in late.hits.values()]
    return all(any(line.source == at.source and line.number < at.number for line in lines) for at in firsts)


def _cancellations_by_scheduler(now: Assessment) -> Iterator[RuleFinding]:
    """Yield the cancellation findings that show only that a scheduler ended the job.

    Such a finding matched only srun's line "Job step aborted", which srun prints whenever a step ends early
    (`src/srun/libsrun/launch.c`).
    """
    if any(finding.tagged("scheduler-decides") for finding in now.fatal):
        for finding in now.found:
            only_srun = all("srun: Job step aborted" in text for text in finding.texts())
            if finding.tagged("cancelled") and finding.hits and only_srun:
                yield finding


def _task_failed_before(now: Assessment, late: RuleFinding) -> bool:
    """Return whether a task failed before the cancellation `late` and therefore caused the cancellation."""
    task = next((finding for finding in now.fatal if finding.tagged("task-failed")), None)
    if task is None or not came_before(task, late):
        return False
    return any(_TASK_FAILED.search(hits.first.line.text) for hits in task.hits.values())


def _raised_first(exception: Unknown, late: RuleFinding) -> bool:
    """Return whether the log shows that an unknown exception occurred before the finding `late`."""
    places = late.occurrences
    if exception.time is not None and all(place.time is not None for place in places):
        return all(place.time is not None and exception.time < place.time for place in places)
    same_stream = [place for place in places if place.stream == exception.stream]
    if same_stream:
        return all(exception.index < place.position for place in same_stream)
    # A launcher reports the crash of one rank after the exceptions of other ranks.
    return _each_is_below(late, [exception.seen.raised.line])


def first_failure(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If the other ranks report only a lost peer, identify the rank that ended first as the cause.

    An abort is a symptom if its reason is in the log. If the other ranks report only a lost peer, users must
    inspect the rank that aborted, or the rank that ended with an exit status but printed no message.

    Example: if rank 0 lost its NCCL peer, and torchrun prints ``exitcode: -6`` for rank 3, the abort of rank
    3 is the cause.
    """
    catalogue, streams, tracker = run.catalogue, run.streams, run.tracker
    missing = ended_well(streams)
    first = (missing, 0) if missing is not None else ended_first(streams)
    if first is None:
        return
    rank, code = first
    fatal = [finding for finding in now.found if finding.is_failure]
    itself = {rule for tag in ITSELF for rule in catalogue.tagged(tag)}
    known = {*catalogue.tagged(SIGTERM), *itself, *failures_of_lost_peers(now.found, (rank, None))}
    others = [
        finding
        for finding in now.exceptions.fatal
        if not finding.shows_teardown or finding.stream[1] in (rank, None)
    ]
    if others or not lost_peers(fatal, (rank, None)) or any(finding.rule not in known for finding in fatal):
        return
    left: Text = ""
    if code == 0:
        left = departures_sentence([ExitedRank(rank, tracker.steps.get(rank))], stepped=tracker.progressed)
    elif any(code in ENDED_WITH[tag] for tag in ITSELF):
        for finding in fatal:
            if finding.rule in itself:
                finding = replace(finding, role="cause", explains=tuple(known - itself))
                yield finding.with_facts("signal-only")
    elif 0 < code <= MOST_STATUS and (code != UNCAUGHT or (run.context.kind and _was_read(rank, run))):
        left = ended_silently(run, now)
    if left and LEFT_EARLY in catalogue.pages:
        yield _early_exit(run, left, rank)


def _was_read(rank: int, run: Snapshot) -> bool:
    """Return whether the logs contain lines from a rank. Some launchers do not log the lines of all ranks."""
    return any(of == rank and stream.index for (_, of), stream in run.streams.items())


def _early_exit(run: Snapshot, note: Text, rank: int) -> RuleFinding:
    """Return a finding that points to the launcher's line about a rank that exited early."""
    streams = run.streams
    lines = [line for stream in streams.values() if (line := stream.summary.exit_lines.get(rank)) is not None]
    last = [stream.last_advance for (_, of), stream in streams.items() if of == rank]
    lines = lines or [line for line in last if line is not None]
    where = replace(lines[0], rank=rank) if lines else None
    step = run.tracker.steps.get(rank, run.tracker.last_step)
    page = run.catalogue.pages[LEFT_EARLY]  # a launcher reported the exit of the rank
    finding = concluded(page, Judgement("fatal", note), seen=True, where=where, step=step)
    return finding.with_facts("left-early", WITH_STATUS)


def abort_at_exit(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If an abort occurred during teardown, after the last step of a run, mark it as less harmful.

    Some releases of DeepSpeed and of libraries with their own threads abort after every successful run. The C
    library's messages before an abort are harmless if no line shows that the run aborted. If a script ends
    its helpers after the training, the script's shell reports the signal that ended the helpers. A progress
    bar that is complete but shows no loss is not evidence that the training had ended.

    Example: ``Fatal Python error: Aborted`` after ``Training completed.`` is degrading.
    """
    fatal, facts, tracker = now.fatal, now.facts, run.tracker
    if not facts.complete or now.exceptions.fatal:
        return
    harmless = Judgement("harmless", message("diagnosis.aborted-at-exit"))
    if tracker.surely_finished and all(
        _shows_any_process(finding) or _is_code_before_the_end(finding, tracker) for finding in fatal
    ):
        yield from (finding.with_judgement(harmless, seen=True) for finding in fatal)
        return
    abort = next((finding for finding in fatal if finding.tagged("sigabrt")), None)
    others = [
        finding
        for finding in fatal
        if finding is not abort and finding.role != "wrapper" and not finding.tagged(SIGTERM)
    ]
    if abort is None or others:
        return
    only_words = bool(abort.hits) and not facts.died and all(map(_HEAP.match, abort.texts()))
    for finding in fatal:
        degrading = finding is abort and not only_words
        judgement = Judgement("degrading", harmless.note) if degrading else harmless
        judged = finding.with_judgement(judgement, seen=True)
        yield judged.with_facts(AT_EXIT) if finding is abort else judged


def _is_code_before_the_end(finding: RuleFinding, tracker: ProgressTracker) -> bool:
    """Return whether a finding shows only process exit codes, and training reported its end after them.

    For example, a reinforcement learning run starts generated code in a sandbox.
    """
    lines = [hits.last.line for hits in finding.hits.values()]
    only_codes = bool(lines) and all(map(_EXIT_CODE.search, finding.texts()))
    return only_codes and all(map(tracker.states_end_after, lines))


def _shows_any_process(finding: RuleFinding) -> bool:
    """Return whether a finding shows only that a process ended, which might not be a training process."""
    if finding.tagged("any-process") and finding.hits:
        return finding.tagged("exit-status") or all(map(_ANY_PROCESS.search, finding.texts()))
    return is_of_other_program(finding)
