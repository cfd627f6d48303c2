"""What helps a reader where no rule knows the cause: the nearest pages, and the lines that are new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import IN_TROUBLE, Diagnosis
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.sentences import say

if TYPE_CHECKING:
    from stallwatch_rules.failures.novelty import Baseline

MAX_LOOKED_UP = 5  #: unknown exceptions for which pages are looked for


def complete(
    diagnosis: Diagnosis,
    streams: Mapping[tuple[str, int | None], StreamReading],
    catalogue: Catalogue,
    baseline: Baseline | None = None,
    *,
    ended: bool = False,
    language: str = "en",
) -> Diagnosis:
    """Add them to the diagnosis of a run that failed or stands; any other needs none.

    A log that ends in mid-course with words of an error, or with what its baseline does not have, gets the
    new lines and a note; ``ended`` says that the run's end is known otherwise, or that it is still watched.
    """
    if diagnosis.verdict not in IN_TROUBLE:
        if not ended and (baseline is not None or _last_words(diagnosis, streams)):
            from stallwatch_rules.failures.novelty import new_lines

            new = new_lines(streams, baseline)
            diagnosis.new_lines = [one for one in new if baseline is not None or one.level == "error"]
            if any(one.level == "error" for one in diagnosis.new_lines):
                diagnosis.notes.append(say("last-words", language))
        return diagnosis
    from stallwatch_rules.failures.novelty import new_lines  # here: a healthy run's diagnosis needs neither

    told = {(one.first.file, one.first.line) for one in diagnosis.unknown}
    new = new_lines(streams, baseline)
    diagnosis.new_lines = [one for one in new if (one.first.file, one.first.line) not in told]
    if diagnosis.unknown:
        from stallwatch_rules.failures.nearest import nearest_in

        nearest = nearest_in(catalogue)
        for one in diagnosis.unknown[:MAX_LOOKED_UP]:
            one.nearest = nearest.of(one.exception, one.message, one.root)
    return diagnosis


def _last_words(diagnosis: Diagnosis, streams: Mapping[tuple[str, int | None], StreamReading]) -> bool:
    """Whether an unfinished run's log says after its last step that something is wrong."""
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
