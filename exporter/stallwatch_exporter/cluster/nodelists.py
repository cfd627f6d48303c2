"""Expand compressed Slurm lists of hosts, such as ``n[1-3,07-12],gpu[001-002]-ib``."""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_rules.text.lazy import lazy

MOST_HOSTS = 65_536  #: Maximum number of hosts in a list. Even a short text can describe millions of hosts.
_MOST_CHARACTERS = 1 << 20
_TERM = lazy(r"(?:[A-Za-z0-9_.:-]|\[[0-9,-]+\])+")
_PART = lazy(r"\[([0-9,-]+)\]|([^\[\]]+)")
_RANGE = lazy(r"(\d{1,12})(?:-(\d{1,12}))?")
_MOST_BRACKETS = 8  # Slurm allows several brackets in a name, for example, rack[0-3]node[1-8]
_LONGEST = 253  # maximum length of a hostname (RFC 1035 and RFC 1123)


class BadNodeList(ValueError):
    """Raised if the text is not a list of hosts, or if it has too many hosts."""


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts in the order of the list, as ``scontrol show hostnames`` does.

    Raises:
        BadNodeList: The text is not a list of hosts, or it has too many hosts.
    """
    found: list[str] = []
    for host in _hosts(text):
        found.append(host)
        if len(found) > MOST_HOSTS:
            raise BadNodeList(f"more than {MOST_HOSTS:,} hosts")
    return tuple(found)


def _hosts(text: str) -> Iterator[str]:
    if len(text) > _MOST_CHARACTERS:
        raise BadNodeList("the list of hosts is too long")
    for term in filter(None, _terms(text)):
        if not _TERM.fullmatch(term) or term.count("[") > _MOST_BRACKETS:
            raise BadNodeList(f"not a host: {term[:40]!r}")
        yield from _expanded([(match[1], match[2]) for match in _PART.finditer(term)])


def _terms(text: str) -> Iterator[str]:
    """Split the text at commas outside brackets, and yield the parts."""
    began, depth = 0, 0
    for at, character in enumerate(text):
        if character == "," and not depth:
            yield text[began:at]
            began = at + 1
        depth += (character == "[") - (character == "]")
    yield text[began:]


def _expanded(parts: list[tuple[str | None, str | None]]) -> Iterator[str]:
    """Yield all names that a term describes. If it has several bracket pairs, the last varies fastest."""
    if not parts:
        yield ""
        return
    (ranges, plain), rest = parts[0], parts[1:]
    for beginning in [plain] if ranges is None else _numbers(ranges):
        for end in _expanded(rest):
            if len(name := f"{beginning}{end}") > _LONGEST:
                raise BadNodeList("a host's name is too long")
            yield name


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise BadNodeList(f"not a range: {part[:40]!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise BadNodeList(f"not a range: {part[:40]!r}")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
