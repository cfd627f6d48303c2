"""Determine from filenames which files in a folder are logs and which ranks printed them.

A file that the user specifies is always read. The number in ``worker-3.log`` can be the number of a node, a
Pod, or a rank. It is the number of a rank if several files are numbered in the same way and the first lines
of each file contain only the file's own number as the rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from stallwatch_rules.text.lazy import lazy

_LOG = lazy(
    r"""(?: .*\.(?:log|txt|out|err|stdout|stderr|console|output)   # train.log, slurm-17.out
          | .*\.log[._-][\w.:-]+                                   # train.log.1, train.log.2026-11-20
          | .*\.[oe]\d+                                            # PBS and SGE: job.o12345
          | [\w-]*(?:log|metric|history)[\w-]*\.jsonl              # trainer_log.jsonl, but no data set
          | workerlog\.(?:n\d+\.c)?\d+                             # paddle.distributed.launch
          | trainer_state\.json
          | (?:stdout|stderr|std_out|std_err|nohup|output|console|log)[\w-]*
        )""",
    re.VERBOSE | re.IGNORECASE,
)
_COMPRESSED = lazy(r"\.(?:gz|xz|bz2|zst)$", re.IGNORECASE)
_ARCHIVE = lazy(r"\.(?:(?P<zip>zip)|tar|tgz|txz|tbz2?|tzst|tar\.\w{1,4})$", re.IGNORECASE)
_OF_LOGS = lazy(r"log|rank|std|output|node|worker", re.IGNORECASE)
_NO_LOG = lazy(
    r"""(?: (?:requirements|readme|licen[sc]e|notice|merges|vocab|constraints|cmakelists)\b.*\.txt
          | debug(?:-[\w]+)?\.log                                  # W&B's own
          | incidents\.jsonl | stacks-\d{8}-\d{6}\.txt             # Stallwatch's own
        )""",
    re.VERBOSE | re.IGNORECASE,
)
_OTHER_THINGS = lazy(
    r""".*\.(?:py|ipynb|sh|c|cc|cpp|cu|h|hpp|js|ts|rs|go|md|rst|html?|css|xml|svg|ya?ml|toml|ini|cfg|json|jsonl
          |csv|tsv|parquet|arrow|pt|pth|bin|safetensors|pkl|npy|npz|onnx|gguf|h5|so|a|o|whl|egg|png|jpe?g|gif|pdf
          |mp4|wav|duckdb|db|sqlite|lock|patch|diff|zip|tar|tgz|7z|rar)
        |events\.out\.tfevents\..*|Makefile|Dockerfile|LICENSE|NOTICE|README|latest""",
    re.VERBOSE | re.IGNORECASE,
)
_NO_FOLDER = lazy(r"checkpoint-\d+|global_step_?\d+|__pycache__|node_modules|site-packages|.*\.egg-info")


def takes_name(name: str) -> bool:
    """Return whether the name of a file in a folder or an archive is typical of a log."""
    if name.startswith("."):
        return False
    archive = _ARCHIVE.search(name)
    if archive is not None and _OF_LOGS.search(name, 0, archive.start()):
        return True
    plain = _COMPRESSED.sub("", name)
    return _LOG.fullmatch(plain) is not None and _NO_LOG.fullmatch(plain) is None


def archive_named(name: str) -> str | None:
    """Return the kind of archive that a file's name indicates: ``"zip"``, ``"tar"``, or ``None``."""
    found = _ARCHIVE.search(name)
    return None if found is None else "zip" if found["zip"] else "tar"


def may_be_log(name: str) -> bool:
    """Return whether a file can be a log. Use this function if no file in a folder has a typical log name."""
    plain = _COMPRESSED.sub("", name)
    return not (name.startswith(".") or _NO_LOG.fullmatch(plain) or _OTHER_THINGS.fullmatch(plain))


def enters_folder(name: str) -> bool:
    """Return whether a folder is searched for logs.

    Hidden folders, checkpoints, and installed packages are not searched.
    """
    return (name in (".", "..") or not name.startswith(".")) and _NO_FOLDER.fullmatch(name) is None


HEAD = 64 * 1024  #: number of bytes at the start of each file that are searched for ranks
MOST_FILES = 4096  #: maximum number of files whose names differ only in their numbers
_NUMBERED = lazy(r"(?P<before>.*?[._-])(?P<number>\d{1,4})(?P<behind>\.(?:log|out|err|txt))?")
# Ranks as printed by loggers and by Ascend CANN. The rank in a LoRA configuration has a different form.
_RANKS = lazy(rb"(?<![A-Za-z_])(?:[Rr]ank[ _]?|[Rr]ank(?:ID|_id)? ?[:=] ?|RANK ?[:=] ?)(\d{1,6})(?![\d.])")
_ENOUGH = 2  # minimum number of occurrences of the rank in its file


def ranks_in_lines(paths: Mapping[str, str]) -> dict[str, int]:
    """Return the rank of each numbered file whose first lines contain the file's own number as the rank.

    ``paths`` maps the names of files to their paths. Files whose rank is unknown are omitted.
    """
    families: dict[tuple[str, str], dict[int, str]] = {}
    for name in paths:
        found = _NUMBERED.fullmatch(name)
        if found is not None:
            family = families.setdefault((found["before"], found["behind"] or ""), {})
            family[int(found["number"])] = name
    ranks: dict[str, int] = {}
    for family in families.values():
        # The file with the highest number is checked first because a high number is rarely a rank by
        # chance.
        if 2 <= len(family) <= MOST_FILES and all(
            _names_only(number, paths[family[number]]) for number in sorted(family, reverse=True)
        ):
            ranks |= {name: number for number, name in family.items()}
    return ranks


def of_one_training(jobs: Mapping[str, Iterable[str]]) -> bool:
    """Return whether files that seem to belong to several jobs are from the ranks or nodes of one run.

    ``jobs`` maps each job to the paths of its files. The files are from one run if the lines of each job
    contain ranks, no rank occurs in two jobs, and all ranks together count from 0 without a gap. If a job
    violates one of these conditions, no further files are read.
    """
    seen: set[int] = set()
    for paths in jobs.values():
        ranks = {rank for path in paths for rank in _named(path)}
        if not ranks or ranks & seen:
            return False
        seen |= ranks
    return seen == set(range(len(seen)))


def _names_only(number: int, path: str) -> bool:
    named = _named(path)
    return len(named) >= _ENOUGH and set(named) == {number}


def _named(path: str) -> list[int]:
    """Return the ranks in the first lines of a file. A rank that occurs twice is returned twice."""
    try:
        with Path(path).open("rb") as file:
            return [int(found) for found in _RANKS.findall(file.read(HEAD))]
    except (OSError, ValueError):
        return []
