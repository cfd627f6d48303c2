"""From the exit codes that launchers report, determine how ranks ended and which rank ended first.

A rank that loses a connection reports the loss immediately. The launcher reports the failed process only
after it has ended all other processes. Therefore, neither the order of these lines nor their times show which
rank ended first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stallwatch_rules.diagnosis.findings import RuleFinding, Streams
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.endings import BY_SIGKILL
from stallwatch_rules.messages import Text, message
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.records import Line
from stallwatch_rules.text.display import latest, shown
from stallwatch_rules.text.lazy import lazy

SIGTERM: Tag = "sigterm"
SIGKILL: Tag = "sigkill"
FROM_OUTSIDE: Tag = "killed-from-outside"  #: tag of the rule for a SIGKILL that the kernel did not send
BY_SIGTERM = (-15, 143)
BY_SEGFAULT = (-11, 139)  #: exit codes of a process that SIGSEGV ended, and of a shell that ran the process
MOST_STATUS = 127  #: maximum exit status set by a program itself; 128 + n and negative numbers mean a signal
#: Messages that show that a signal asked a launcher to end. The messages are from the torchrun agent and its
#: SignalException, from the main process of accelerate, and from a shell whose program ended because of
#: SIGTERM (bash 5.2, jobs.c).
_END_REQUESTED = lazy(
    r"death signal|got signal|Main process received|closing signal SIGHUP"
    r"|^(?:.{1,200}: line \d+: +\d+ )?Terminated\b"
)
_MEMORY = lazy(r"(?i)memory|\boom|oom[-_ ]?kill")
#: Lines that libraries print while the interpreter exits, whatever ended the program.
_AT_EXIT = lazy(
    r"^(?:wandb|swanlab|mlflow|comet)\b|resource_tracker|^\s*warnings\.warn\(|\w*Warning:"
    r"|^Exception ignored in|^\s*File \"|^\[[WI]\d{3,4} |destroy_process_group"
)
_NOT_RUN = (126, 127)  # exit statuses of a shell that was unable to run a program (POSIX 2018, Shell, 2.8.2)
_OTHERS = (3, 5, 10, 12, 13, 14, 16, 24, 25, 26, 27, 29, 30, 31, *range(34, 65))
#: For each tag, the exit codes of a process that the signal ended, and of a shell that ran the process.
ENDED_WITH: dict[Tag, tuple[int, ...]] = {
    SIGKILL: BY_SIGKILL,
    FROM_OUTSIDE: BY_SIGKILL,
    "sigsegv": BY_SEGFAULT,
    "sigbus": (-7, 135),
    "sigabrt": (-6, 134),
    "sigfpe": (-8, 136),
    "sigill": (-4, 132),
    "other-signal": (*(-number for number in _OTHERS), *(128 + number for number in _OTHERS)),
}


def lines_about_memory(finding: RuleFinding) -> tuple[str, ...]:
    """Return the finding's lines that mention memory."""
    return tuple(text for text in dict.fromkeys(finding.texts()) if _MEMORY.search(text))


def ended_from_outside(sigterm: RuleFinding, found: Iterable[RuleFinding]) -> bool:
    """Return whether the launcher was asked to exit or something else, such as a scheduler, ended the run."""
    texts = (text for hits in sigterm.hits.values() for text in hits.exemplars)
    signaled = not sigterm.hits or any(_END_REQUESTED.search(text) for text in texts)
    return signaled or any(
        finding.tagged("ends-from-outside") and finding.harm == "fatal" for finding in found
    )


def ended_first(streams: Streams) -> tuple[int, int] | None:
    """Return two values: the rank that failed first according to the launchers, and its exit code.

    Return ``None`` if launchers report different ranks, or no rank.
    """
    first: set[tuple[int, int]] = set()
    for stream in streams.values():
        summary, culprits = stream.summary, stream.summary.culprits
        rank = summary.first if summary.first is not None else culprits[0] if len(culprits) == 1 else None
        code = summary.codes.get(rank) if rank is not None else None
        if rank is not None and code not in (None, 0, *BY_SIGTERM):
            first.add((rank, code))
    return first.pop() if len(first) == 1 else None


def ended_well(streams: Streams) -> int | None:
    """If a single rank is missing from the torchrun list, return this rank, which ended without a failure.

    The list contains each process of its node with an exit status other than 0, including the processes
    that torchrun itself ended (`SubprocessContext._poll`, torch 2.13). The rank must have completed steps.
    Return ``None`` if several ranks are missing, because another node's list might name them.
    """
    codes = {rank for stream in streams.values() for rank in stream.summary.codes}
    summed = any(stream.summary.first is not None for stream in streams.values())
    stepped = {rank for (_, rank), stream in streams.items() if rank is not None and stream.last_advance}
    left = stepped - codes
    if not summed or len(codes) < 2 or len(left) != 1 or codes | left != set(range(len(codes) + 1)):
        return None
    return left.pop()


def ended_with(codes: Collection[int], streams: Streams) -> set[int]:
    """Return the ranks that ended with one of these exit codes, according to launchers' reports."""
    summaries = (stream.summary for stream in streams.values())
    return {rank for summary in summaries for rank, code in summary.codes.items() if code in codes}


def rank_of_end(finding: RuleFinding, streams: Streams) -> int | None:
    """Return the rank that the finding's signal ended.

    If the signal ended several ranks, return the rank that failed first.
    """
    codes = [code for tag, every in ENDED_WITH.items() if finding.tagged(tag) for code in every]
    ended = ended_with(codes, streams)
    first = ended_first(streams)
    if first is not None and first[0] in ended:
        return first[0]
    return next(iter(ended)) if len(ended) == 1 else None


def lost_peers(found: Iterable[RuleFinding], own: Collection[int | None]) -> list[RuleFinding]:
    """Return the fatal findings that report a lost peer, except findings on a rank in `own`."""
    gone = [
        finding
        for finding in found
        if finding.tagged("peer-gone") and finding.harm == "fatal" and finding.role == "symptom"
    ]
    return [finding for finding in gone if finding.hits and not {rank for _, rank in finding.hits} & set(own)]


def failures_of_lost_peers(found: Iterable[RuleFinding], own: Collection[int | None]) -> set[str]:
    """Return the rules for other ranks' reports about lost peers, and the rules that these rules explain.

    Reports of the ranks in `own` do not count.
    """
    return {rule for finding in lost_peers(found, own) for rule in (finding.rule, *finding.page.explains)}


def ended_silently(run: Snapshot, now: Assessment) -> Text:
    """If the first rank to end exited with a failure but printed no error, return a message about the rank.

    An example is ``sys.exit(1)``. Return an empty string if there is no such rank, or if an error in the
    log might be from that rank.
    """
    first = ended_first(run.streams)
    if first is None or not 0 < first[1] <= MOST_STATUS:
        return ""
    rank, code = first
    reported = {seen.stream[1] for seen in now.exceptions.unknown if seen.fatal or seen.stream[1] == rank}
    for finding in now.found:
        if finding.is_failure and not finding.tagged(SIGTERM):
            reported |= {where for _, where in finding.hits}
    if reported & {rank, None}:
        return ""
    return message("diagnosis.ended-silently", rank=rank, code=code)


def ended_by_itself(run: Snapshot, now: Assessment) -> Text:
    """If a command failed and no launcher, signal, or exception was involved, return a note about it."""
    ending = run.context.ending
    launched = any(stream.summary.codes or stream.summary.spawned for stream in run.streams.values())
    if ending is None or ending.kind != "failed" or launched or now.exceptions.any:
        return ""
    if ending.exit_code in _NOT_RUN:
        return message("diagnosis.command-not-run")
    last = _closing_message(run)
    if last is None:
        return message("diagnosis.ended-by-itself")
    return message("diagnosis.ended-with-message", code=ending.exit_code or 0, line=shown(last.text))


def _closing_message(run: Snapshot) -> Line | None:
    """If the last message of a run is new, matches no rule, and follows the last step, return the message.

    An example is the message of ``sys.exit("no data left")``.
    """
    step = run.clock.last_advance
    if step is None:
        return None
    entries = [entry for stream in run.streams.values() for entry in stream.templates.entries.values()]
    new = [entry.last for entry in entries if _is_after(entry.first, step)]
    new = [line for line in new if not _AT_EXIT.search(line.text)]
    return latest(new) if new else None


def _is_after(line: Line, step: Line) -> bool:
    if line.source == step.source:
        return line.number > step.number
    return line.time is not None and step.time is not None and line.time > step.time
