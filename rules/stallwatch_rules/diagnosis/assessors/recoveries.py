"""Assess failures that did not end the run, or that resulted only from a manual stop.

Training survives some failures, and programs handle other failures. For example, a reward function tolerates
model output that it cannot parse, a dataset skips unreadable lines, or a library tests whether another
library is installed. Each of these programs can print the same traceback as a rank that fails. Only the later
lines show whether the failure was handled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stallwatch_rules.diagnosis.exceptions import SURVIVED, Exceptions
from stallwatch_rules.diagnosis.findings import RuleFinding, Streams, answers_after, came_before
from stallwatch_rules.diagnosis.snapshot import Assessment, Change, RemovedFinding, RunContext, Snapshot
from stallwatch_rules.diagnosis.unrelated import is_recurring_noise
from stallwatch_rules.failures.templates import states_fallback
from stallwatch_rules.judgements.facts import (
    RECOVERED,
    RECOVERED_BUT_DIED,
    judge_recovery,
    judge_service,
    recovered,
)
from stallwatch_rules.judgements.loss import finite_losses
from stallwatch_rules.judgements.loss_scale import CALIBRATION
from stallwatch_rules.messages import message
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.progress.curve import Point

NOT_FOUND = (126, 127)  #: exit codes of shells that were unable to find or start a program
NOT_CALLED = 2  #: exit code of programs that were called with wrong arguments
AT_ONCE = 1.0  #: time, in seconds, within which the order of a command's output and its errors is uncertain
#: Tags of rules whose exceptions can result from the failed start of another process.
_OF_OTHERS: tuple[Tag, ...] = ("peer-gone", "awaits-peer", "connecting", "exit-status", "start-failed")
#: Number of steps, and of printed finite losses, after which a single NaN no longer counts. If the step
#: numbers restarted after the NaN, fewer printed losses are sufficient.
FORGOTTEN = 20
OFTEN = 0.05  #: number of matches per step above which a failure that training survives is still harmful
NUMERICS = "numerics"  #: family of rules for failures that the exit code does not reflect
SCHEDULER = "scheduler-and-process"  #: family of rules for the consequences of an external stop


def recoveries(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If training continued after failures, mark the failures as harmless.

    Example: ``torch.OutOfMemoryError`` at step 5 is harmless if steps 6 to 300 follow.
    """
    streams, facts = run.streams, now.facts
    for finding in now.found:
        if finding.harm not in ("fatal", "degrading") or finding.role == "notice":
            continue
        if now.exceptions.starves(finding.rule, finding.followed, stalled=facts.stalled):
            continue
        often = facts.advances > 0 and finding.count >= 3 and finding.count / facts.advances > OFTEN
        often = often and not finding.once
        # While fp16 training searches for its loss scale, non-finite gradients are normal, but non-finite
        # losses are not.
        often = often or (finding.tagged("nan-loss") and _is_recent(finding, streams))
        often = often or (finding.tagged("nan-gradient") and _is_always_nan(finding, streams))
        if finding.tagged("nan-gradient") and _calibrating(finding):
            yield finding.with_harm("harmless", message("diagnosis.overflow-start", count=finding.count))
        # The exit status belongs to a program that ran before or alongside the training.
        elif finding.tagged("exit-status") and finding.followed:
            yield finding.with_harm("harmless", recovered(finding.followed, finding.count))
        elif is_recurring_noise(finding):
            yield finding.with_harm("harmless", message("diagnosis.maybe-caught"))
        elif finding.harm == "fatal" and finding.hits and all(map(states_fallback, finding.texts())):
            yield finding.with_harm("harmless", message("diagnosis.handled"))
        elif finding.tagged("nan-loss") and _no_finite_loss_since(finding, streams):
            continue  # later steps do not repair the weights
        else:
            answers = (answers_after(key, hits.answers, streams) for key, hits in finding.hits.items())
            judgement = judge_recovery(
                finding.followed,
                often,
                facts,
                finding.count,
                survived_before=_survived_before(finding, run, now),
            )
            judgement = judgement or judge_service(min(answers, default=0), facts)
            if judgement is not None:
                yield finding.with_harm(judgement.harm, judgement.note)


def raised(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If an exception that a degrading finding describes ended this run, mark the finding as fatal.

    Example: ``RuntimeError: Function 'LogSoftmaxBackward0' returned nan values`` is fatal if no step follows.
    """
    for finding in now.found if run.context.failed is not False else ():
        if finding.harm == finding.page.harm == "degrading" and finding.rule in now.exceptions.ended_in:
            yield replace(finding, harm="fatal")


def excuses(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If a user had already stopped the run, or if the command succeeded, mark findings as harmless.

    Ranks that are interrupted one after another report that they lost each other. If the interrupt came
    first, such a report is only a symptom of the interrupt. If the interrupt is known to have ended the run,
    findings after it are harmless, even if their rules describe causes.

    Example: ``Watchdog caught collective operation timeout`` is harmless if the exit code is 0.
    """
    ended_well = run.context.failed is False
    interrupt = next(
        (finding for finding in now.found if finding.tagged("interrupt") and finding.followed < SURVIVED),
        None,
    )
    for finding in now.fatal:
        aftermath = finding.role == "wrapper" or (
            finding.role != "cause" and finding.page.family == SCHEDULER
        )
        excusable = finding.role == "symptom" or finding.tagged("interrupted-with-rank")
        if interrupt is not None and (excusable or run.context.kind == "interrupted"):
            aftermath = aftermath or came_before(interrupt, finding)
        if run.by_hand and aftermath:
            yield finding.with_harm("harmless", message("diagnosis.stopped-by-hand"))
        elif ended_well and finding.page.family != NUMERICS:
            yield finding.with_harm("harmless", message("diagnosis.ended-well"))
    if ended_well or run.by_hand:
        yield now.exceptions.excused(only_interrupted=not ended_well)


def handled_exceptions(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Assess failures that programs often handle, such as a failed request that is retried.

    Example: ``json.decoder.JSONDecodeError: Extra data`` is fatal if no step follows.
    """
    exceptions, facts, context = now.exceptions, now.facts, run.context
    otherwise = run.by_hand or context.failed is False or context.kind not in ("", "failed", "unknown")
    # While a run is running, its next line can show that the run continued.
    running = context.now is not None and context.failed is None and not facts.stalled
    caused = any(finding.role == "cause" for finding in now.fatal)
    for finding in now.found:
        if exceptions.starves(finding.rule, finding.followed, stalled=facts.stalled):
            yield replace(finding, harm="fatal")
            continue
        if running and finding.rule in exceptions.of_commands:
            yield finding.with_harm("harmless", message("diagnosis.maybe-caught"))
            continue
        if not finding.tagged("often-handled") or not finding.hits:
            continue
        soon = finding.rule in exceptions.beside or finding.tagged("tried-at-start")
        soon = soon or _survived_before(finding, run, now)
        if finding.followed >= (1 if soon else RECOVERED):
            yield finding.with_harm("harmless", recovered(finding.followed, finding.count))
        elif facts.complete and not facts.died:
            yield finding.with_harm("harmless", message("diagnosis.caught-at-end"))
        elif caused or otherwise or running or _raised_later(finding, exceptions):
            yield finding.with_harm(finding.harm, message("diagnosis.maybe-caught"))
        else:
            once = all(hits.count == 1 for hits in finding.hits.values())
            # The log can stop at this line although the run continued. A run can also survive a failure
            # that it already survived once.
            judged = not once or bool(facts.advances and not facts.died)
            yield replace(finding, harm="fatal", judged=judged)


def teardown(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If a failure or a signal explains findings in teardown output, mark the findings as harmless.

    After a failure, threads and child processes report that they lost the failed process, and destructors
    and exit handlers fail. This output can appear long before the output of the failure. If the main thread
    reports only such a loss, the cause is the last thread or child process that died for another reason. A
    handled exception did not end the run, unless the run is known to have died and no other finding shows
    why.

    Example: if a thread raises ``ConnectionResetError`` and the main program raises ``ValueError``, the
    ``ValueError`` ended the run.
    """
    noise = [
        finding for finding in now.found if finding.harm in ("fatal", "degrading") and finding.shows_teardown
    ]
    fatal = now.exceptions.fatal
    lost = [finding for finding in fatal if finding.shows_teardown or finding.lost_something]
    if not noise and not lost:
        return
    failures = any(finding.is_failure and not finding.shows_teardown for finding in now.found)
    signal = run.context.kind in ("killed", "oom-killed", "time-limit", "interrupted")
    if failures or signal or len(lost) < len(fatal):
        exceptions = now.exceptions.explained(otherwise=failures or signal)
    else:
        exceptions = now.exceptions.of_helpers()
    if run.by_hand or failures or signal or any(not finding.shows_teardown for finding in exceptions.fatal):
        yield from (finding.with_harm("harmless", message("diagnosis.teardown")) for finding in noise)
    elif not now.facts.died:
        yield from (
            finding.with_harm("harmless", message("diagnosis.handled"))
            for finding in noise
            if finding.handled
        )
    yield exceptions


def failed_starts(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Assess shell messages and usage messages, which can show that a program failed to start.

    Start scripts often try to load modules that a machine lacks, or print the help of programs, and then
    continue. Therefore, a start counts as failed only if the message is the last output. Requested help is
    not a failure.

    A program that rejects its command line exits immediately. If a later start trained or failed differently,
    the rejected start does not explain how the run ended.

    Example: ``run.sh: line 3: torchrunn: command not found`` is fatal if it is the only output.
    """
    streams, tracker, context = run.streams, run.tracker, run.context
    trained = tracker.progressed or tracker.finished or any(finding.sampled for finding in streams.values())
    otherwise = bool(now.exceptions.fatal) or run.by_hand or context.failed is False
    otherwise = otherwise or any(
        finding.is_failure and not finding.tagged("start-failed") for finding in now.found
    )
    for finding in now.found:
        if finding.tagged("start-failed") and finding.hits and finding.rule not in now.exceptions.ended_in:
            if trained or otherwise or _started(finding, streams, context):
                yield RemovedFinding(finding.rule)
            # While a run is running, its next line can show that the run continued.
            elif context.now is None or context.failed:
                yield replace(finding, harm="fatal")
        elif finding.tagged("start-refused") and _started_again(finding, run, now):
            yield finding.with_harm("harmless", message("diagnosis.started-again"))


def _started_again(finding: RuleFinding, run: Snapshot, now: Assessment) -> bool:
    """Return whether a start after the rejected start trained or failed with a different exception.

    Only streams in which the rule matched are considered, because other nodes can wait for the rejected
    start until those nodes fail.
    A launcher's exception about the rejected start does not count.
    """
    for key, hits in finding.hits.items() if finding.harm == "fatal" else ():
        if run.streams[key].timelines.advances > hits.mark:
            return True
        if any(
            unknown.stream == key and unknown.index > hits.last_index and unknown.is_of_main_program
            for unknown in now.exceptions.fatal
        ):
            return True
        for other in now.fatal:
            later = other.hits[key].first_index > hits.last_index if key in other.hits else False
            own = other.rule in now.exceptions.ended_in and not any(map(other.tagged, _OF_OTHERS))
            if later and own and other.role == "cause":
                return True
    return False


def _started(finding: RuleFinding, streams: Streams, context: RunContext) -> bool:
    """Return whether the output after a message about a failed start shows that a program ran."""
    code = context.ending.exit_code if context.ending is not None else None
    if code in NOT_FOUND:
        return False
    states = ("output",) if context.failed else ("output", "help")
    if all(streams[key].below_start in states for key in finding.hits):
        return True
    # A script's output has no rank. If ranks print lines, the script started the ranks.
    scripts = {source for source, rank in finding.hits if rank is None}
    others = {key: stream for key, stream in streams.items() if key not in finding.hits and stream.plain}
    if any(source in scripts and rank is not None for source, rank in others):
        return True
    last, unsure = finding.last, 0.0 if code == NOT_CALLED else AT_ONCE
    return last is not None and any(
        stream.timed
        and None not in (last.line.time, stream.last_time)
        and (stream.last_time or 0.0) > (last.line.time or 0.0) - unsure
        for stream in others.values()
    )


def _survived_before(finding: RuleFinding, run: Snapshot, now: Assessment) -> bool:
    """Return whether training took steps after enough earlier matches of a finding.

    A single earlier match is not sufficient, because a failure that was handled once can end the run the next
    time. Exceptions that ended the run and matches in several attempts do not count, because each attempt can
    end in the same way. Matches in a run that stalled and invalid numbers do not count either.
    """
    if run.restarts or now.facts.stalled or finding.page.family == NUMERICS:
        return False
    often = all(hits.at_steps > RECOVERED for hits in finding.hits.values())
    return bool(finding.hits) and often and finding.rule not in now.exceptions.ended_in


def _raised_later(finding: RuleFinding, exceptions: Exceptions) -> bool:
    """Return whether a rank on which the finding matched later raised an unknown exception."""
    return any(
        unknown.stream in finding.hits and unknown.index > finding.hits[unknown.stream].last_index
        for unknown in exceptions.fatal
    )


def _is_recent(finding: RuleFinding, streams: Streams) -> bool:
    """Return whether only a few steps or a few printed losses follow the last non-finite loss.

    Many steps can lie between two printed losses, so a single finite loss is weak evidence of a recovery.
    """
    if finding.followed < FORGOTTEN:
        return True
    for key, hits in finding.hits.items():
        stream = streams[key]
        curve = stream.curves.main
        losses = [point.mark for point in finite_losses(curve.points)] if curve is not None else []
        if curve is None or not losses:
            continue
        needed = RECOVERED_BUT_DIED if _began_anew(curve.points, hits.mark) else FORGOTTEN
        if sum(mark > hits.mark for mark in losses) < needed:
            return True
        whole = not stream.templates.partial  # a partial template table counts matches, but not all losses
        if whole and hits.count >= 3 and hits.count / curve.seen > OFTEN:
            return True
    return False


def _began_anew(points: Sequence[Point], mark: int) -> bool:
    """Return whether the step numbers restarted before the first loss after the step count `mark`.

    For example, a sweep ends a trial with a NaN loss, and the next trial starts with new weights.
    """
    before = [point.step for point in points if point.mark <= mark and point.step is not None]
    after = next((point.step for point in points if point.mark > mark and point.step is not None), None)
    return bool(before) and after is not None and after < before[-1] / 2


def _no_finite_loss_since(finding: RuleFinding, streams: Streams) -> bool:
    """Return whether no stream has a finite loss after its non-finite losses."""
    for key, hits in finding.hits.items():
        curve = streams[key].curves.main
        if curve is None or any(point.mark > hits.mark for point in finite_losses(curve.points)):
            return False
    return True


def _is_always_nan(finding: RuleFinding, streams: Streams) -> bool:
    """Return whether all gradient norms in one of the streams are NaN."""
    for key in finding.hits:
        curve = streams[key].curves.main
        points = curve.points if curve is not None else []
        norms = [point.grad_norm for point in points if point.grad_norm is not None]
        if len(norms) >= 2 and all(math.isnan(norm) for norm in norms):
            return True
    return False


def _calibrating(finding: RuleFinding) -> bool:
    """Return whether gradients were infinite only in the first steps and never NaN, as is usual with fp16."""
    for hits in finding.hits.values():
        texts = " ".join(hits.exemplars).lower()
        step = hits.last_own_step
        if step is None or step > CALIBRATION or "nan" in texts or "inf" not in texts:
            return False
    return bool(finding.hits)
