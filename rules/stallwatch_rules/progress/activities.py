"""Recognize the activity of a rank between steps (such as loading or saving) from the rank's last lines.

Programs rarely report the end of such an activity. Therefore, the next line of the rank ends the activity,
unless this line is a detail of the activity: an indented line, another bar, or the output of a compiler.

``activities.json`` lists words from the lines that programs print when an activity begins, and from the bars
that they draw during an activity (datasets 4.4.1: ``builder.py``, ``arrow_dataset.py``, ``file_utils.py``;
huggingface_hub 1: ``utils/_http.py``; trl 0.24: the trainers; transformers 5: ``core_model_loading.py``;
vllm: ``model_loader``; composer: ``console_logger.py``; Megatron-LM: ``training.py``; torch:
``cpp_extension.py``). ``phases.py`` determines the phase, which is the activity of the run as a whole.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import duration

MAX_TEXT = 400  #: maximum number of characters at the start of a line that are searched
_BAR_DONE = lazy(r":? *100%\|")
#: Lines that are details of an activity: lines that are indented (even after the prefix of a logger), and
#: lines that ``cpp_extension.py`` in torch prints.
_DETAIL = lazy(r"\s|$|\[INFO\|.{1,80}>>  |\[\d+/\d+\] |Allowing ninja to set |ninja: ")
_ELAPSED = lazy(r"\[(\d{1,3}:\d\d(?::\d\d)?)[<,]")


class _Entry(msgspec.Struct, frozen=True):
    id: str
    words: tuple[str, ...]
    pattern: str


_entries = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=tuple[_Entry, ...])
_ACTIVITIES = tuple((entry.id, entry.words, lazy(entry.pattern)) for entry in _entries)
#: Each line that shows an activity contains at least one of these words.
ACTIVITY_WORDS = tuple(dict.fromkeys(word for entry in _entries for word in entry.words))


class Activity(msgspec.Struct):
    """The latest activity of one rank in the lines of one source."""

    kind: str  #: part of the key of the activity's message: ``activity.<kind>``
    what: str  #: the data split that the line names, or an empty string if the line names none
    first: Line
    last: Line
    after: Line | None = None  #: the first later line that is not a detail of the activity

    @property
    def seconds(self) -> float | None:
        """The duration in seconds: as printed or as the time between its lines, whichever is longer."""
        found = _ELAPSED.search(self.last.text[:MAX_TEXT])
        shown = duration(found[1]) if found is not None else None
        known = self.first.time is not None and self.last.time is not None
        timed = self.last.time - self.first.time if known else None  # type: ignore[operator]
        return max((each for each in (shown, timed) if each is not None), default=None)


def follow(before: Activity | None, line: Line) -> Activity | None:
    """Return the activity of a rank after `line`, given its activity `before`, or ``None`` if it has none."""
    text = line.text[:MAX_TEXT]
    found = _named(text)
    if found is None:
        if before is not None and before.after is None and _DETAIL.match(text) is None:
            before.after = line
        return before
    if _BAR_DONE.search(text) is not None:
        return None
    if before is not None and (before.kind, before.what) == found:
        before.last, before.after = line, None
        return before
    return Activity(*found, line, line)


def _named(text: str) -> tuple[str, str] | None:
    for kind, words, pattern in _ACTIVITIES:
        for word in words:
            if word in text:
                break
        else:
            continue
        found = pattern.search(text)
        if found is not None:
            return kind, found.groupdict().get("what") or ""
    return None
