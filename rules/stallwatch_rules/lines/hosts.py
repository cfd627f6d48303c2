"""Determine the host that wrote a log from the path of the file or from lines that contain a hostname."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stallwatch_rules.lines.ranks import rank_of_path
from stallwatch_rules.text.lazy import lazy

# Words in front of the number in a machine's name, such as node-07, gpu-node-12, or compute3.
_MACHINE = r"(?:node|host|hostname|machine|server|compute|instance|inst|vm|blade|nid|cn|dgx|hgx)"
_ADDRESS = r"ip(?:-\d{1,3}){4}"  # hostnames of EC2
_NAMED = rf"(?:(?:[a-z][a-z0-9]{{0,15}}[-_]){{0,3}}{_MACHINE}[-_]?\d{{1,6}}|{_ADDRESS})"
# The name of a folder can be a host's name. The name of a file can contain a host's name, as in
# "sft-1001-n3.out" (Slurm's "%x-%j-%N.out").
_FOLDER = lazy(rf"{_NAMED}(?:\.[\w.-]+)?", re.IGNORECASE)
_IN_FILE = lazy(rf"(?:^|(?<=[-_.]))({_NAMED}|n\d{{1,6}})(?=[-_.]|$)", re.IGNORECASE)
# The name of a folder whose sibling folders have the same name with a different number: n0, gpu-a-17,
# trn2x31.
_NUMBERED = lazy(r"(?P<word>(?:[a-z0-9]+[-_])*?[a-z0-9]*[a-z])[-_]?\d{1,6}(?:\.[\w.-]+)?", re.IGNORECASE)
_DIGITS = lazy(r"\d+")
_PARTS = lazy(r"[/\\!]")
_LAST_WORD = lazy(r"[a-z]+$")
# Words that precede the number in names of folders that are not hosts. A single letter precedes a host's
# number only if it is one of `_LETTERS`.
_NO_HOST = frozenset((
    "rank", "ranks", "attempt", "step", "steps", "checkpoint", "ckpt", "epoch", "part", "parts", "shard",
    "job", "run", "version", "exp", "experiment", "seed", "gpu", "gpus", "device", "dev", "worker",
    "workers", "task", "tasks", "proc", "process", "local", "global", "stage", "pp", "tp", "dp", "ep", "cp",
    "log", "logs", "out", "output", "try", "restart", "iter", "trial", "lr", "bs", "batch", "chunk", "split",
    "pid", "port", "day", "week", "phase", "round", "fold", "model", "layer", "size", "none", "elastic",
    "rdzv",
))  # fmt: skip
_LETTERS = frozenset("nhcg")
# Beginning of a line that NCCL prints, such as ``n3:4711:4711 [0] NCCL INFO …`` (NCCL 2.27, src/debug.cc).
_NCCL = lazy(r"([A-Za-z0-9][\w.-]{0,62}):\d{1,8}:\d{1,8} \[\d{1,3}\] NCCL ")


def host_in_line(text: str) -> str:
    """Return the host that wrote a line, or an empty string if the line contains no hostname."""
    named = _NCCL.match(text) if ":" in text[:70] else None
    return named[1] if named is not None else ""


def hosts_of_paths(names: Iterable[str]) -> dict[str, str]:
    """Map files to the hosts in their paths. If all files are from one host, return an empty dictionary."""
    split = {name: _PARTS.split(name) for name in names}
    folders = {tuple(above) for *above, _ in split.values()}
    families = _families(folders)
    of_folder = {above: _of_folder(above, families) for above in folders}
    found: dict[str, str] = {}
    for name, (*above, last) in split.items():
        host = of_folder[tuple(above)]
        if not host and (part := _IN_FILE.search(last)) is not None:
            host = part[1]
        if host:
            found[name] = host
    return found if len(set(found.values())) > 1 else {}


_Folders = tuple[str, ...]


def _of_folder(above: _Folders, families: Mapping[_Folders, set[str]]) -> str:
    """Return the innermost folder that is named after a host, or an empty string if there is none."""
    for depth in range(len(above) - 1, -1, -1):
        if _FOLDER.fullmatch(above[depth]) or len(families.get(_family(above, depth), ())) > 1:
            return above[depth]
    return ""


def _family(above: _Folders, depth: int) -> _Folders:
    """Return the path of a folder with 0 in place of its number, for comparison with other folders.

    Return an empty path if the name of the folder cannot be a hostname.
    """
    named = _NUMBERED.fullmatch(above[depth])
    if named is None or rank_of_path(f"{above[depth]}/x") is not None:
        return ()
    word = named["word"].lower()
    last = _LAST_WORD.search(word)
    if last is None or last[0] in _NO_HOST or (len(word) == 1 and word not in _LETTERS):
        return ()
    return (*above[:depth], _DIGITS.sub("0", above[depth]))


def _families(folders: Iterable[_Folders]) -> Mapping[_Folders, set[str]]:
    """Group the folders whose names can be hostnames and differ only in their numbers."""
    families: dict[_Folders, set[str]] = {}
    for above in folders:
        for depth, folder in enumerate(above):
            family = _family(above, depth)
            if family:
                families.setdefault(family, set()).add(folder)
    return families


class HostNumbers(NamedTuple):
    """A numbering of hosts that determines the host of each rank.

    Ranks are assigned to the hosts in order, and each host has the same number of ranks.
    """

    before: str
    behind: str
    digits: int
    first: int  #: number of the host that runs rank 0
    ranks: int  #: number of ranks on each host

    def host(self, rank: int) -> str:
        """Return the name of the host that runs a rank."""
        return f"{self.before}{self.first + rank // self.ranks:0{self.digits}d}{self.behind}"


_NUMBER = lazy(r"(?P<before>.*?)(?P<number>\d{1,6})(?P<behind>\D[^0-9]*)?")
_LEAST = 3  # minimum number of hosts for which a numbering is derived


def numbers_of(hosts: Mapping[str, Iterable[int]]) -> HostNumbers | None:
    """Return the numbering that the names and ranks of these hosts follow, or ``None`` if there is none."""
    orders: set[tuple[str, str, int, int]] = set()
    widths: set[int] = set()
    for name, ranks in hosts.items():
        number, ordered = _NUMBER.fullmatch(name), sorted(ranks)
        if number is None or not ordered or ordered[-1] - ordered[0] != len(ordered) - 1:
            return None
        if ordered[0] % len(ordered):
            return None
        digits = len(number["number"])
        widths.add(digits)
        first = int(number["number"]) - ordered[0] // len(ordered)
        orders.add((number["before"], number["behind"] or "", first, len(ordered)))
    if len(orders) != 1 or len(hosts) < _LEAST:
        return None
    before, behind, first, count = orders.pop()
    return HostNumbers(before, behind, widths.pop() if len(widths) == 1 else 1, first, count)
