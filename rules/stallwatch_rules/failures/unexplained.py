"""Find hints for a run whose problem no rule describes: similar rule pages, and new lines.

New lines occur neither in the healthy part of the run nor in a healthy run that the user provides. Lines are
compared without their digits, identifiers, and paths. If Drain3 is installed, it also merges lines that
differ in a word or two. Drain3 reads only one line of each template.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stallwatch_rules.end_lines import last_step_lines
from stallwatch_rules.failures.advice import advice_for
from stallwatch_rules.failures.templates import Level, Template, TemplateTable
from stallwatch_rules.messages import Text, message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.timeline import StepClock, longest_timeline
from stallwatch_rules.records import Diagnosis, Line, NewLines
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.display import earliest, latest, place, shown
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import masked

ALIKE = 0.65  #: minimum share of equal words for which two lines have the same template
DEPTH = 4


def clusters(texts: Sequence[tuple[str, str]]) -> list[int]:
    """Return a number for each pair of level and masked text. Similar pairs have the same number.

    Lines with different levels never have the same number. If Drain3 (``pip install 'stallwatch[scale]'``) is
    not installed, only equal texts have the same number. Callers must sort the lines, because the result of
    Drain3 depends on their order.
    """
    numbers: dict[object, int] = {}
    trees: dict[str, Any] = {}
    drain = _drain() if len(texts) > 1 else None
    found = []
    for level, text in texts:
        name: object = text
        if drain is not None and text.split():
            if level not in trees:
                trees[level] = drain()
            cluster, _ = trees[level].add_log_message(text)
            name = cluster.cluster_id
        found.append(numbers.setdefault((level, name), len(numbers)))
    return found


def _drain() -> Any:
    """Return a function that creates Drain3 trees, or ``None`` if Drain3 is not installed."""
    try:
        from drain3.drain import Drain  # the import of Drain3 is slow, and most diagnoses do not need it
    except ImportError:
        return None
    return lambda: Drain(depth=DEPTH, sim_th=ALIKE, param_str="<*>")


#: Lines that can follow any failure: rows of the torchrun table, and advice that CUDA prints in all its
#: errors.
_BOILERPLATE = lazy(
    r"^\s*(?:traceback\s*:\s*To enable traceback see|error_file\s*:\s*<N/A>"
    r"|rank\s*:\s*\d+ \(local_rank: \d+\)|exitcode\s*:\s*-?\d+ \("
    r"|host\s*:\s*\S+\s*$|time\s*:\s*\d{4}-\d\d-\d\d_"
    r"|(?:\S+ FAILED|Failures:|Root Cause \(first observed failure\):)\s*$"
    r"|(?:[\w.]+: )?(?:CUDA|HIP) kernel errors might be asynchronously reported"
    r"|Compile with `TORCH_USE_(?:CUDA|HIP)_DSA`"
    r"|For debugging consider passing \w+=)"
    r"|To avoid data inconsistency, we are taking the entire process down"
)

Streams = Mapping[tuple[str, int | None], StreamReading]

MAX_LAST = 3  #: maximum number of last lines that a note quotes
MAX_NEW = 10  #: maximum number of new lines reported for a run
STARTED = 3  #: minimum number of steps after which the lines before the first step count as startup
MAX_EXEMPLARS = 3000  #: maximum number of lines that are clustered

_SEVERITY = {"error": 3.0, "warning": 1.5, "info": 0.0}


@dataclass(frozen=True)
class Baseline:
    """The messages of a healthy run, for comparison with the messages of a different run."""

    exemplars: Mapping[str, Template] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Iterable[TemplateTable]) -> Baseline:
        """Return a baseline of the messages in the tables of all streams of a run."""
        exemplars: dict[str, Template] = {}
        for table in tables:
            for key, entry in table.entries.items():
                exemplars.setdefault(key, entry)
        return cls(exemplars)


@dataclass
class _Group:
    """The entries for one template from all streams that contain the template."""

    entries: list[tuple[StreamReading, Template]]
    new: bool

    @property
    def level(self) -> Level:
        return self.entries[0][1].level

    @property
    def template(self) -> str:
        return masked(self.entries[0][1].first.text)


def new_lines(streams: Streams, baseline: Baseline | None = None) -> list[NewLines]:
    """Return the new lines in a run's logs. The most significant line comes first.

    New lines do not occur in `baseline`. If no baseline is given, they do not occur in the healthy part of
    the run.
    """
    lead = longest_timeline({key: stream.timelines for key, stream in streams.items()})
    clock = StepClock(lead)
    stepped = lead is not None and lead.advances > 0
    started = _started(streams)
    groups: dict[str, _Group] = {}
    for key in sorted(streams, key=lambda key: (key[1] is None, key[1] or 0, key[0])):
        stream = streams[key]
        for name, entry in stream.templates.entries.items():
            if _BOILERPLATE.search(entry.first.text):
                continue
            if baseline is None:
                before = entry.first.number < started.get(stream.source, 0)
                new = not before and _is_new(stream, entry, clock, stepped)
            else:
                new = name not in baseline.exemplars
            group = groups.setdefault(name, _Group([], True))
            group.entries.append((stream, entry))
            group.new = group.new and new
    ordered = [groups[name] for name in sorted(groups)]
    joined = _joined(ordered, [] if baseline is None else list(baseline.exemplars.values()))
    reported = sorted(joined, key=lambda group: (-_weight(group), group.template))
    return [_record(group) for group in reported[:MAX_NEW]]


def _started(streams: Streams) -> dict[str, int]:
    """For each source that has enough steps, return the line number of the first step.

    Earlier lines belong to the start of the program. For a rank that prints no steps itself, the order of
    later lines is inconclusive, because the lines with the steps of other ranks can be delayed.
    """
    started: dict[str, int] = {}
    for (source, _), stream in streams.items():
        main = stream.timelines.main
        if main is not None and main.advances >= STARTED:
            number = main.intervals[0].number
            started[source] = min(number, started.get(source, number))
    return started


def _is_new(stream: StreamReading, entry: Template, clock: StepClock, stepped: bool) -> bool:
    """Return whether the lines of a template first occurred after the last training step.

    A log without steps has no healthy part for comparison. In such a log, only errors count as new.
    """
    if stream.templates.partial and entry.level == "info":
        return False
    steps = stream.timelines.advances
    if steps:
        return entry.advances >= steps
    time = stream.when(entry.first)
    if stepped and time is not None:
        return entry.advances >= 0 and clock.after(time) == 0
    return entry.level == "error"


def _joined(groups: Sequence[_Group], known: Sequence[Template]) -> list[_Group]:
    """Merge new groups with similar lines, and drop new groups that resemble lines that are not new."""
    fresh = [group for group in groups if group.new]
    if not fresh:
        return []
    old = [(group.level, group.template) for group in groups if not group.new]
    old += [(entry.level, masked(entry.first.text)) for entry in known]
    texts = [(group.level, group.template) for group in fresh] + old
    found: dict[int, _Group] = {}
    taken: set[int] = set()
    for position, cluster in enumerate(clusters(texts[:MAX_EXEMPLARS])):
        if position >= len(fresh):
            taken.add(cluster)
        elif cluster in found:
            found[cluster].entries += fresh[position].entries
        else:
            found[cluster] = _Group(list(fresh[position].entries), True)
    return [group for cluster, group in found.items() if cluster not in taken]


def _weight(group: _Group) -> float:
    """Return the significance of a group of lines.

    Errors, rare lines, lines near the end of the log, and lines that many ranks printed are more significant.
    """
    count = sum(entry.count for _, entry in group.entries)
    ranks = len({stream.rank for stream, _ in group.entries})
    # A line is near the end if few lines of the same stream follow it.
    followed = min(max(0, stream.index - 1 - entry.last_index) for stream, entry in group.entries)
    return (
        _SEVERITY[group.level]
        + 1.0 / (1.0 + math.log10(max(1.0, count / ranks)))
        + 1.0 / (1.0 + math.log10(1 + followed))
        + 0.2 * math.log2(ranks)
    )


def _record(group: _Group) -> NewLines:
    first = earliest(entry.first for _, entry in group.entries)
    last = latest(entry.last for _, entry in group.entries)
    step = next(entry.step for _, entry in group.entries if entry.first is first)
    return NewLines(
        template=masked(first.text),
        exemplar=shown(first.text),
        level=group.level,
        count=sum(entry.count for _, entry in group.entries),
        ranks=sorted({stream.rank for stream, _ in group.entries if stream.rank is not None}),
        first=place(first, step),
        last=place(last, None),
    )


MAX_LOOKED_UP = 5  #: maximum number of unknown exceptions for which similar pages are searched


def with_explanations(
    diagnosis: Diagnosis,
    streams: Mapping[tuple[str, int | None], StreamReading],
    catalogue: Catalogue,
    baseline: Baseline | None = None,
    *,
    ended: bool = False,
) -> Diagnosis:
    """Add advice, similar rule pages, and new lines to the diagnosis of a failed or stalled run.

    For other runs, new lines and a note are added only if the log ends with an error, or if a baseline does
    not contain some of the lines. For an unfinished run that has no new lines, a note quotes the last lines
    of the log. If `ended` is True, nothing is added for other runs. In this case, the caller knows the run's
    end from other evidence, or still watches the run.
    """
    if not diagnosis.in_trouble:
        if not ended and (baseline is not None or _last_words(diagnosis, streams)):
            new = new_lines(streams, baseline)
            diagnosis.new_lines = [entry for entry in new if baseline is not None or entry.level == "error"]
            if any(entry.level == "error" for entry in diagnosis.new_lines):
                diagnosis.notes.append(message("diagnosis.last-words"))
        if not ended and diagnosis.verdict == "unfinished" and not diagnosis.new_lines:
            lines: list[Text] = [f"“{shown(line.text)}”" for line in last_messages(streams)]
            diagnosis.notes += [message("diagnosis.last-output", lines=lines)] if lines else []
        return diagnosis
    known = {(entry.first.file, entry.first.line) for entry in diagnosis.unknown}
    new = new_lines(streams, baseline)
    diagnosis.new_lines = [entry for entry in new if (entry.first.file, entry.first.line) not in known]
    if diagnosis.unknown:
        from stallwatch_rules.failures.nearest import nearest_in

        nearest = nearest_in(catalogue)
        for entry in diagnosis.unknown[:MAX_LOOKED_UP]:
            entry.nearest = nearest.of(entry.exception, entry.message, entry.root)
            entry.advice = advice_for(entry.exception, entry.message) or ""
    return diagnosis


def last_messages(streams: Streams) -> list[Line]:
    """Return the last distinct messages after the last step of a log, in the order in which they appear.

    If the run has several logs, return messages from the log that has the latest message.
    """
    steps = last_step_lines(streams)
    below = [
        entry.last
        for stream in streams.values()
        for entry in stream.templates.entries.values()
        if entry.last.number > steps.get(stream.source, entry.last.number)
    ]
    source = latest(below).source if below else ""
    different: dict[str, Line] = {}
    for line in sorted(below, key=lambda line: line.number, reverse=True):
        if line.source == source:
            different.setdefault(masked(line.text), line)
    return list(different.values())[:MAX_LAST][::-1]


def _last_words(diagnosis: Diagnosis, streams: Mapping[tuple[str, int | None], StreamReading]) -> bool:
    """Return whether the log of an unfinished run contains an error after the last training step."""
    progress = diagnosis.progress
    return (
        progress.last_step is not None
        and not progress.finished
        and any(
            entry.level == "error" and 0 < stream.timelines.advances <= entry.advances
            for stream in streams.values()
            for entry in stream.templates.entries.values()
        )
    )
