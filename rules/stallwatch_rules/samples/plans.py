"""How to read all lines of one template at once: learnt from one of them by changing its numbers.

Lines that differ in their digits only are read alike. Which number of the line becomes which value is found
by changing one number after the other and reading the line the usual way; what cannot be explained by one
number and a factor has no plan, and its lines are read one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.lines.stamps import own_time
from stallwatch_rules.records import Line, Sample
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.table import fields_of, is_bare, phase_of, tells
from stallwatch_rules.samples.templates import TOKEN, Outcome, apply, changed_in, explain, same, shape_of
from stallwatch_rules.text.lazy import lazy

_BLANKS = lazy(rb" +")
PICTURE = lazy(rb"%\|[\x80-\xff #\d]*\|")  #: what a bar looks like does not matter
_ANY_PICTURE = re.escape(b"%||"), rb"%\|[^|\n]*\|"
_MOST_TOKENS = 60

_SOME_TIME = 1.7e9


@dataclass
class Plan:
    """How the lines of one template are read."""

    reads: re.Pattern[bytes]  #: the whole line; a group for each number that is needed
    groups: list[tuple[str, float]] = field(default_factory=list)  #: name and factor (0: one over it)
    constants: Outcome = field(default_factory=dict)
    tokens: dict[int, tuple[str, float]] = field(default_factory=dict)  #: the same by the line's numbers
    stamp: list[int] = field(default_factory=list)  #: which numbers are the time
    sample: bool = False  #: else the line only tells the time
    bare: bool = False

    @property
    def useful(self) -> bool:
        """Whether its lines hold a sample or a time."""
        timed = self.constants.get("time") is not None or any(name == "time" for name, _ in self.groups)
        return self.sample or timed


def single(raw: bytes, source: str, rank: int | None, near: float | None) -> list[Line]:
    """The lines that a physical line (or a segment of it) is, read by itself: with their own times only."""
    reader = LineReader(source, rank).alone(near)
    return reader.feed(raw + b"\n") + reader.finish()


def _outcome(raw: bytes, rank: int | None, near: float | None = None) -> Outcome | None:
    """What a line is read as; ``None`` if it is several lines."""
    lines = single(raw, "", rank, near)
    if not lines:
        return {}
    if len(lines) > 1:
        return None
    line = lines[0]
    sample = extract(line)
    outcome: Outcome = {"rank": line.rank, "time": line.time}
    if sample is not None and tells(sample):
        outcome |= _told(sample)
    return outcome


def _told(sample: Sample) -> Outcome:
    return {
        "sample": 1.0,
        "bare": float(is_bare(sample)),
        "step": sample.step,
        "total_steps": sample.total_steps or None,
        "phase": phase_of(sample),
        **fields_of(sample),
    }


def learn(raw: bytes, rank: int | None) -> Plan | None:
    """The plan for lines of this one's template; ``None`` if there is none."""
    raw = PICTURE.sub(b"%||", raw)
    tokens = list(TOKEN.finditer(raw))
    base = _outcome(raw, rank) if len(tokens) <= _MOST_TOKENS and len(raw) <= MAX_LINE else None
    if base is None or base != _outcome(raw, rank, _SOME_TIME):  # its time needs its neighbours'
        return None
    explained = explain(raw, tokens, base, lambda raw: _outcome(raw, rank))
    if explained is None:
        return None
    wanted, depends, changed = explained
    stamp = depends.get("time", [])
    if stamp and not _is_stamp(raw, tokens, stamp, base["time"], changed):
        return None
    plan = Plan(
        re.compile(b""), tokens=wanted, stamp=stamp, sample="sample" in base, bare=bool(base.get("bare"))
    )
    plan.constants = {name: value for name, value in base.items() if name not in depends}
    _compile(plan, raw, tokens)
    return plan


def likened(raw: bytes, rank: int | None, like: Plan) -> Plan | None:
    """The plan by which lines are read that another one's lines differ from in blanks and exponents; ``None``
    if it does not explain this line."""
    raw = PICTURE.sub(b"%||", raw)
    tokens = list(TOKEN.finditer(raw))
    base = _outcome(raw, rank) if len(raw) <= MAX_LINE else None
    expected = dict(like.constants)
    for index, (name, factor) in like.tokens.items():
        value = float(tokens[index][0].replace(b",", b""))
        if not factor and not value:
            return None
        expected[name] = apply(value, factor) if factor else 1 / value
    if like.stamp:
        expected["time"] = stamp_time(raw[tokens[like.stamp[0]].start() : tokens[like.stamp[-1]].end()])
    if base is None or base.keys() != expected.keys() or not all(same(base[n], expected[n]) for n in base):
        return None
    plan = replace(like, groups=[])
    _compile(plan, raw, tokens)
    return plan


def shape(raw: bytes) -> bytes:
    """What is common to a line and to those that may be read by its plan with other blanks and exponents."""
    return _BLANKS.sub(b" ", TOKEN.sub(b"0", PICTURE.sub(b"%||", raw)))


def _is_stamp(
    raw: bytes, tokens: list[re.Match[bytes]], stamp: list[int], time: object, changed: dict[int, Outcome]
) -> bool:
    """Whether the time is that of the text from the first to the last of these numbers."""
    start, end = tokens[stamp[0]].start(), tokens[stamp[-1]].end()
    if stamp != list(range(stamp[0], stamp[-1] + 1)) or stamp_time(raw[start:end]) != time:
        return False
    return all(
        stamp_time(changed_in(raw, tokens[index])[start:end]) == changed[index]["time"] for index in stamp
    )


@lru_cache(maxsize=65536)
def _second(text: bytes) -> float | None:
    return own_time(text.decode("ascii", "replace"))


def stamp_time(text: bytes) -> float | None:
    """The time of a stamp by itself; the seconds, which many lines share, are kept."""
    if len(text) > 20 and text[19] in b".," and text[20:].isdigit():
        second = _second(text[:19])
        return None if second is None else second + int(text[20:]) / 10 ** (len(text) - 20)
    return _second(text)


def _compile(plan: Plan, raw: bytes, tokens: list[re.Match[bytes]]) -> None:
    wanted, stamp = plan.tokens, plan.stamp
    parts: list[bytes] = []
    at = 0
    for index, token in enumerate(tokens):
        parts.append(re.escape(raw[at : token.start()]))
        shape = shape_of(token[0])
        if stamp and index == stamp[0]:
            parts.append(b"(")
        if index in wanted:
            plan.groups.append(wanted[index])
            shape = b"(" + shape + b")"
        parts.append(shape)
        if stamp and index == stamp[-1]:
            parts.append(b")")
        at = token.end()
    parts.append(re.escape(raw[at:]))
    if stamp:  # where its group is among the others
        plan.groups.insert(sum(index < stamp[0] for index in wanted), ("time", 1.0))
    plan.reads = re.compile(b"^" + b"".join(parts).replace(*_ANY_PICTURE) + b"$", re.MULTILINE)
