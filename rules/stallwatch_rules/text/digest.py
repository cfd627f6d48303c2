"""Format facts in short, readable forms: ranks as ranges, counts, durations, and times."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise

from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.records import Diagnosis, UnknownException
from stallwatch_rules.text.lazy import lazy


def counted(count: int, noun: str) -> str:
    """Return a count with a noun, such as ``1 line`` or ``2,000 lines``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


MAX_DIGEST = 12  #: maximum number of lines in a digest; if a run has more groups, no digest is created
MAX_TITLE = 160


def neighbours(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each sequence of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def fold_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as ranges: ``0–3, 8`` for ``[0, 1, 2, 3, 8]``. Two adjacent ranks do not form a range."""
    parts: list[str] = []
    for first, last in neighbours(ranks):
        if last - first >= 2:
            parts.append(f"{first}–{last}")
        else:
            parts += [str(rank) for rank in range(first, last + 1)]
    return ", ".join(parts)


_LAST_NUMBER = lazy(r"\d+(?=\D*$)")


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key for the natural order of names, in which n2 comes before n10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,18})", name)]


def fold_names(names: Iterable[str]) -> str:
    """Return names in the form of ranges, such as ``n0–n127`` or ``n0, n2``."""
    return ", ".join(span_of(run) for run in name_runs(names))


def span_of(run: Sequence[str]) -> str:
    """Return consecutive names as a range, such as ``n0–n127``. Two names do not form a range: ``n0, n1``."""
    return f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(run)


def name_runs(names: Iterable[str]) -> list[list[str]]:
    """Return names in natural order, grouped so that the numbers in each group are consecutive."""
    series: dict[str, list[tuple[int, str]]] = {}
    for name in sorted(set(names), key=natural_order):
        number = _LAST_NUMBER.search(name)
        about = _LAST_NUMBER.sub("#", name)
        series.setdefault(about, []).append((int(number[0]) if number is not None else 0, name))
    runs: list[list[str]] = []
    for numbered in series.values():
        last: int | None = None
        for place, name in numbered:
            if last is not None and place == last + 1:
                runs[-1].append(name)
            else:
                runs.append([name])
            last = place
    return runs


_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def duration_parts(seconds: float) -> list[tuple[str, str]]:
    """Split a duration into one or two numbers with units.

    A duration below ten seconds has at most three significant digits.
    """
    if 0 < seconds < 0.0995:
        return [(f"{seconds * 1000:.2g}", "ms")]
    if seconds < 9.995:
        return [(f"{max(0.0, seconds):.3g}", "s")]
    whole = round(seconds)
    for (unit, size), (smaller, step) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // step
            return [(str(whole // size), unit), *([(str(rest), smaller)] if rest else [])]
    return [(str(whole), "s")]


def rank_digest(diagnosis: Diagnosis, odd: Collection[int] = ()) -> list[Text]:
    """Return a line for each group of ranks that ended in the same way. The primary cause comes first.

    The result is empty if no rank is known, or if all ranks ended in the same way. For a run on several
    hosts, `odd` contains the ranks for which the other ranks waited.
    """
    primary = diagnosis.primary
    ends: list[tuple[list[int], Text, str | None, bool]] = [
        (
            finding.ranks,
            finding.title,
            finding.first.time,
            primary is not None and finding.rule == primary.rule,
        )
        for finding in diagnosis.findings
        if finding.ranks and finding.harm == "fatal" and finding.role in ("cause", "symptom")
    ]
    if diagnosis.in_trouble:
        ends += [
            (unknown.ranks, _title(unknown), unknown.first.time, primary is None and not at)
            for at, unknown in enumerate(diagnosis.unknown)
            if unknown.ranks and unknown.exception
        ]
    odd = odd if diagnosis.hosts else ()
    if len({tuple(ranks) for ranks, *_ in ends}) < (1 if odd else 2):
        return []
    ends.sort(key=lambda end: not end[3])
    began = ends[0][2]
    hosts = {rank: host.host for host in diagnosis.hosts for rank in host.ranks}
    lines: list[Text] = []
    if odd:
        what = message("diagnosis.waited-for")
        lines = [_digest_line(sorted(odd), what, None, None, hosts)]
        ends = [([rank for rank in ranks if rank not in odd], *end) for ranks, *end in ends]  # type: ignore[misc]
    for ranks, title, time, _ in ends[:MAX_DIGEST]:
        if ranks:
            lines.append(_digest_line(ranks, title, time, began, hosts))
    return lines


def _title(unknown: UnknownException) -> str:
    return shortened(unknown.described)


def shortened(text: str, most: int = MAX_TITLE) -> str:
    """Return the text, shortened to at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _digest_line(
    ranks: list[int], what: Text, time: str | None, began: str | None, hosts: Mapping[int, str]
) -> Message:
    apart = parse_iso(time) - parse_iso(began) if time is not None and began is not None else 0.0
    side = "" if abs(apart) < 1 else "-later" if apart > 0 else "-earlier"
    known = {"apart": abs(apart)} if side else {}
    on = {hosts.get(rank, "") for rank in ranks}
    if "" in on:
        return message(
            f"diagnosis.digest{side}", count=len(ranks), ranks=fold_ranks(ranks), what=what, **known
        )
    shown = ranks_on(ranks, hosts)
    return message(f"diagnosis.digest-hosts{side}", ranks=shown, what=what, **known)


def span_of_steps(steps: Collection[int]) -> int | str:
    """Return a step (``29``), the first and last of several steps (``3–7``), or 0 if there are no steps."""
    first, last = min(steps, default=0), max(steps, default=0)
    return first if first == last else f"{first}–{last}"


def some_ranks(ranks: Collection[int]) -> Message:
    """Return ranks such as ``rank 3`` or ``ranks 0–6, 8``."""
    return message("report.some-ranks", count=len(ranks), ranks=fold_ranks(ranks))


FEW_HOSTS = 3  #: maximum number of hosts whose names are shown; if there are more, only their number is shown


def ranks_on(ranks: Collection[int], hosts: Mapping[int, str]) -> Message:
    """Return ranks with their hosts, such as ``rank 614 on n76`` or ``1,023 ranks on 127 hosts``."""
    on = {hosts[rank] for rank in ranks if rank in hosts}
    if len(on) > FEW_HOSTS:
        return message("diagnosis.ranks-on-hosts", count=len(ranks), hosts=len(on))
    folded, named = fold_ranks(ranks), fold_names(on)
    return message("diagnosis.ranks-on", count=len(ranks), ranks=folded, hosts=named)


def parse_iso(time: str) -> float:
    """Convert an ISO 8601 time from the records of Stallwatch to a Unix timestamp in seconds.

    A time without a zone is in UTC.
    """
    moment = datetime.fromisoformat(time.replace("Z", "+00:00"))  # Python 3.10 cannot parse a ``Z``
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
