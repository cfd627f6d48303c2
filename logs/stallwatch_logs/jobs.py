"""Use filenames to assign log files to jobs.

Files are assigned to different jobs only if their names prove that there are several jobs. If the files can
be from ranks or nodes of one run, they are read as one run. Therefore, a number identifies a job only in
positions in which schedulers write job numbers. A number never identifies a job if it counts ranks, nodes,
steps, or parts, if it is a time, or if it can be a process ID.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch_logs.file_names import of_one_training
from stallwatch_logs.log_files import LogFile, natural
from stallwatch_rules.lines.ranks import rank_of_path
from stallwatch_rules.text.lazy import lazy

_FEW_DIGITS, _MOST_DIGITS = 4, 10
_words: dict[str, frozenset[str]] = msgspec.json.decode(
    Path(__file__).with_name("job_words.json").read_bytes(), type=dict[str, frozenset[str]]
)
# A number after one of these words is a count, a process ID, an address, or a size.
_NO_JOB = _words["no_job"]
_LAST_WORD = lazy(r"([a-z]+)[-_.]?\d*[-_.]*$")
# Text before a number that is part of a machine's name: the name of a chip, ``k8s``, or an IP address.
_MACHINE = lazy(
    r"""(?<![a-z0-9]) (?: (?:gb|gh|[abhlpv])\d{1,3}0s? | [lt]4 | mi\d{3}x? | v\d{1,2}[ep] | 910[a-d] | k8s
                        | ip(?:[-_.]\d{1,3}){2,3} ) [-_.]$""",
    re.VERBOSE,
)
# These words can be anywhere in a name because the logs of Ray workers, NCCL, and CANN have further words
# before the process ID in their names.
_PROCESSES = lazy(r"(?<![a-z])(?:rank|nccl|hccl|pid|plog|worker|raylet|driver)(?![a-z])", re.IGNORECASE)
_DATE = lazy(r"(?<!\d)(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?!\d)")
_EPOCHS = range(1_400_000_000, 2_200_000_000)  # times in Unix seconds, from 2014 to 2039
_YEARS = range(2015, 2040)
_ROUND = 100
_PORTS = (range(6000, 6064), range(8000, 8100), range(12300, 12400), range(29400, 29600))  # common ports
_CLOSE = 300  # Maximum gap between the process IDs of one launch. Threads also use IDs.
_MOST_PROCESSES = 2**22  # maximum process ID on Linux


def names_a_job(numbers: Collection[str]) -> bool:
    """Return whether numbers can be job numbers: they have a typical form and are not dates or times."""
    if not all(_FEW_DIGITS <= len(number) <= _MOST_DIGITS and number[0] != "0" for number in numbers):
        return False
    return not all(map(_is_moment, numbers))


def counts_other(text: str) -> bool:
    """Return whether a number after this text counts something other than jobs, such as ranks or steps."""
    word = _LAST_WORD.search(text.lower())
    return word is not None and word[1] in _NO_JOB


def numbers_jobs(text: str, numbers: Mapping[str, Collection[str]]) -> bool:
    """Return whether numbers that follow this text in filenames can only be job numbers.

    `numbers` maps each number to the suffixes of the files that have this number.
    """
    if (
        counts_other(text)
        or _MACHINE.search(text.lower())
        or _PROCESSES.search(text)
        or _DATE.search(text)
        or rank_of_path(text) is not None
    ):
        return False
    if not names_a_job(numbers) or len({len(number) for number in numbers}) > 2:
        return False
    counts = sorted(map(int, numbers))
    if counts[-1] > 10 * counts[0] or all(count % _ROUND == 0 for count in counts):
        return False  # the numbers are steps or sizes
    dense = counts[-1] - counts[0] == len(counts) - 1
    if dense and len(counts) > 1 and (counts[0] % _ROUND == 0 or any(counts[0] in ports for ports in _PORTS)):
        return False  # consecutive numbers that start at a round number are ports or ranks
    return not _may_be_processes(text, numbers, counts)


def _may_be_processes(text: str, numbers: Mapping[str, Collection[str]], counts: list[int]) -> bool:
    """Return whether all numbers can be process IDs, as in `train_45012.log`."""
    if any(end != "log" for ends in numbers.values() for end in ends):
        return False
    if counts[-1] > _MOST_PROCESSES:
        return False
    if not text.endswith("_"):
        return True
    # A node starts several processes in quick succession. Therefore, a single number is not a process ID.
    gaps = [float("inf"), *(after - before for before, after in itertools.pairwise(counts)), float("inf")]
    return all(min(around) <= _CLOSE for around in itertools.pairwise(gaps))


def _is_moment(number: str) -> bool:
    """Return whether a number can be a date or a time."""
    if len(number) == 4:
        return int(number) in _YEARS
    if len(number) == 6:  # yymmdd
        return 15 <= int(number[:2]) < 40 and _is_day(number[2:])
    if len(number) == 8:  # yyyymmdd, mmddHHMM
        return (int(number[:4]) in _YEARS and _is_day(number[4:])) or (
            _is_day(number[:4]) and int(number[4:6]) < 24 and int(number[6:]) < 60
        )
    if len(number) == 10:  # Unix seconds, yymmddHHMM, mmddHHMMSS
        return int(number) in _EPOCHS or _is_day(number[2:6]) or _is_day(number[:4])
    return False


def _is_day(number: str) -> bool:
    return 1 <= int(number[:2]) <= 12 and 1 <= int(number[2:]) <= 31


OTHER = "other"  #: name for the files that cannot be assigned to a job

_PARTS = lazy(r"[/\\!]")  # separators of the parts of a path, and of an archive and its member
_PACKED = lazy(r"\.(?:gz|xz|bz2|zst)$", re.IGNORECASE)
_JOB_WORD = r"(?:slurm|sbatch|(?:slurm)?job(?:[-_]?id)?)"
# Names that only the jobs of schedulers have, in any folder. After the job's number, suffixes from
# the Slurm patterns %N, %n, and %t (node, node number, and task) and the task of a job array belong to the
# same job.
_SURE = lazy(
    rf"""(?:.*[^a-z0-9])?{_JOB_WORD}[-_.]?(?P<word>[1-9]\d{{3,9}})(?!\d).*   # slurm-1001_3.out, job-1001.log
       | .+\.p?[oe](?P<pbs>[1-9]\d{{3,9}})(?:[.-]\d{{1,5}}|\[\d{{1,5}}\])?   # PBS and SGE: sft.o1001
       | (?P<submitit>[1-9]\d{{3,9}})(?:_\d{{1,4}}){{1,2}}_log\.(?:out|err)  # submitit: 1001_0_log.out
     """,
    re.VERBOSE | re.IGNORECASE,
)
_JOB_FOLDER = lazy(rf"{_JOB_WORD}[-_.]?([1-9]\d{{3,9}})", re.IGNORECASE)
# `%x-%j.out`, `%x.%j.out` (LSF: %J), and `%j.out`. In each form, the number of a task or node can follow.
_NUMBERED = lazy(
    r"""(?P<text>(?:.*[-_.])?)(?P<number>\d{4,})
        (?:[_.+-](?:(?:task|proc|procid|rank|node|n|t)[-_]?)?\d{1,3}|\[\d{1,5}\]){0,2}
        \.(?P<end>out|err|log)""",
    re.VERBOSE | re.IGNORECASE,
)
_COUNTED = lazy(r"(?P<text>(?:.*[-_.])?)\d{1,3}\.(?:out|err|log)", re.IGNORECASE)
_ANY_NUMBER = lazy(r"(?<![A-Za-z0-9])[1-9]\d{3,9}(?![A-Za-z0-9])")
# torchrun creates such a folder on each node. The folders of one run have the same ID.
_TORCHRUN = lazy(r"(?P<run>.+)_[a-z0-9_]{8}")
_ATTEMPT = lazy(r"attempt_\d{1,4}")
_POD = lazy(
    r"(?P<job>.+?)-(?:master|worker|launcher)-\d{1,4}(?:_[\w.-]+)?(?:\.(?:log|txt|out|err))?", re.IGNORECASE
)
_FIRST_POD = lazy(r".+?-(?:master|worker|launcher)-0(?!\d).*", re.IGNORECASE)
# Words that distinguish the Pods of one run. In the name of a Pod, they are at the position of the job's
# name.
_ROLE = _words["role"]


_Predicate = Callable[[Mapping[str, str]], bool]  # function that receives a mapping of files to jobs


class _Numbered(NamedTuple):
    folder: str
    text: str
    number: str
    end: str


def by_job(
    names: Sequence[str],
    owned: Mapping[str, str] | None = None,
    of_one_training: _Predicate = lambda _job_of: False,
) -> dict[str, list[str]]:
    """Group the files by job.

    The keys are the names of the jobs. Return an empty dictionary if all files can belong to one run.

    ``owned`` maps files to jobs that are known from evidence other than the files' names. If the only sign of
    several jobs is that names differ in a number, ``of_one_training`` decides whether the files belong to one
    run. Files whose job is unknown have the key `OTHER`.
    """
    jobs: dict[str, str] = {}
    for grouped in (
        lambda _rest: dict(owned or {}),
        _torchruns,
        lambda rest: _scheduled(rest, of_one_training),
        lambda rest: _unless(of_one_training, _pods(rest)),
    ):
        found = grouped([name for name in names if name not in jobs])
        if len(set(found.values())) > 1:
            jobs |= found
    if not jobs:
        return {}
    jobs |= _by_number([name for name in names if name not in jobs], set(jobs.values()))
    jobs |= _by_folder([name for name in names if name not in jobs], jobs)
    other = OTHER
    while other in jobs.values():  # a job already has this name
        other += "-files"
    sorted_out: dict[str, list[str]] = {}
    for name in names:
        sorted_out.setdefault(jobs.get(name, other), []).append(name)
    return sorted_out if len(sorted_out) > 1 else {}


def _split(name: str) -> tuple[list[str], str]:
    """Return the names of a file's folders, and the file's name without a compression suffix."""
    *folders, last = _PARTS.split(name)
    return folders, _PACKED.sub("", last)


def _unless(of_one_training: _Predicate, found: dict[str, str]) -> dict[str, str]:
    """Return the jobs in ``found``, or no jobs if the files' content shows that all are from one run."""
    return {} if len(set(found.values())) > 1 and of_one_training(found) else found


def _scheduled(names: Iterable[str], of_one_training: _Predicate) -> dict[str, str]:
    """Map files to the job numbers in their names.

    A number is a job number if the name has a form that schedulers use, or if the names of several files
    differ only in this number.
    """
    found: dict[str, str] = {}
    numbered: dict[str, _Numbered] = {}
    counted: set[tuple[str, str]] = set()
    for name in names:
        folders, last = _split(name)
        if (number := _sure(folders, last)) is not None:
            found[name] = number
            continue
        folder = "/".join(folders)
        if alike := _NUMBERED.fullmatch(last):
            numbered[name] = _Numbered(folder, alike["text"], alike["number"], alike["end"].lower())
        elif few := _COUNTED.fullmatch(last):
            counted.add((folder, few["text"]))
    return found | _unless(of_one_training, _alike(numbered, counted))


def _sure(folders: Sequence[str], last: str) -> str | None:
    sure = _SURE.fullmatch(last)
    if sure is not None:
        number = sure["word"] or sure["pbs"] or sure["submitit"]
        if sure["pbs"] or last.lower().startswith("slurm") or names_a_job([number]):
            return str(number)
    for folder in reversed(folders):
        if (above := _JOB_FOLDER.fullmatch(folder)) is not None and names_a_job([above[1]]):
            return above[1]
    return None


def _alike(numbered: Mapping[str, _Numbered], counted: set[tuple[str, str]]) -> dict[str, str]:
    """If filenames in the same folder differ only in job numbers, map the files to these numbers."""
    families: dict[tuple[str, str], dict[str, set[str]]] = {}
    for parsed in numbered.values():
        families.setdefault((parsed.folder, parsed.text), {}).setdefault(parsed.number, set()).add(parsed.end)
    sure = {
        family
        for family, ends in families.items()
        if len(ends) > 1 and family not in counted and numbers_jobs(family[1], ends)
    }
    # If the numbers in some names are job numbers, numbers at the same position in other names are also job
    # numbers. An example is the form `%x-%j.out`.
    forms = {(folder, text[-1:]) for folder, text in sure}
    lengths = {(folder, text[-1:], len(number)) for folder, text in sure for number in families[folder, text]}
    for (folder, text), ends in families.items():
        if text and (folder, text[-1]) in forms and (folder, text) not in counted and len(ends) == 1:
            near = {len(number) + by for number in ends for by in (-1, 0, 1)}
            if any((folder, text[-1], length) in lengths for length in near) and numbers_jobs(text, ends):
                sure.add((folder, text))
    return {name: parsed.number for name, parsed in numbered.items() if (parsed.folder, parsed.text) in sure}


def _torchruns(names: Iterable[str]) -> dict[str, str]:
    """In each folder that contains the logs of several runs, map files to the run IDs of torchrun."""
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        folders, _ = _split(name)
        for index in range(1, len(folders)):
            if _ATTEMPT.fullmatch(folders[index]) and (torchrun := _TORCHRUN.fullmatch(folders[index - 1])):
                found[name] = "/".join(folders[: index - 1]), torchrun["run"]
                break
    runs: dict[str, set[str]] = {}
    for parent, run in found.values():
        runs.setdefault(parent, set()).add(run)
    # With a static rendezvous, the nodes of one run also have different IDs.
    several = {parent for parent, ids in runs.items() if len(ids) > 1 and not any(map(counts_other, ids))}
    return {name: run for name, (parent, run) in found.items() if parent in several}


def _pods(names: Iterable[str]) -> dict[str, str]:
    """Map files to the names of their Kubernetes jobs, unless these names are roles or groups of one run."""
    found: dict[str, str] = {}
    with_first: set[str] = set()
    for name in names:
        _, last = _split(name)
        pod = _POD.fullmatch(last)
        if pod is None or rank_of_path(pod["job"]) is not None:
            continue
        found[name] = pod["job"]
        if _FIRST_POD.fullmatch(last):
            with_first.add(pod["job"])
    jobs = set(found.values())
    words = {job: [re.sub(r"\d+", "", word) for word in re.split(r"[-_.]", job.lower())] for job in jobs}
    words_of = {job: tuple(word for word in parts if len(word) > 1) for job, parts in words.items()}
    if jobs != with_first or len(jobs) < 2 or len(set(words_of.values())) < len(jobs):
        return {}
    common = set.intersection(*(set(parts) for parts in words_of.values()))
    distinct = [set(parts) - common for parts in words_of.values()]
    return {} if any(not parts or not _ROLE.isdisjoint(parts) for parts in distinct) else found


def _by_number(names: Iterable[str], jobs: set[str]) -> dict[str, str]:
    """Assign each file to a known job if the file's path contains the number of only this job.

    Examples are files with error messages and files of single ranks.
    """
    found: dict[str, str] = {}
    for name in names:
        if rank_of_path(name) is not None and str(rank_of_path(name)) in jobs:
            continue
        held = {number for part in _PARTS.split(name) for number in _ANY_NUMBER.findall(part)} & jobs
        if len(held) == 1:
            found[name] = held.pop()
    return found


def _by_folder(names: Iterable[str], jobs: Mapping[str, str]) -> dict[str, str]:
    """If all files with a known job in a folder belong to one job, assign the other files to this job."""
    below: dict[tuple[str, ...], set[str]] = {}
    for name, job in jobs.items():
        folders = _PARTS.split(name)[:-1]
        for depth in range(len(folders) + 1):
            below.setdefault(tuple(folders[:depth]), set()).add(job)
    found: dict[str, str] = {}
    for name in names:
        folders = _PARTS.split(name)[:-1]
        for depth in range(len(folders), -1, -1):
            known = below.get(tuple(folders[:depth]))
            if known is not None:
                if len(known) == 1:
                    found[name] = next(iter(known))
                break
    return found


class RunFolders(NamedTuple):
    """The jobs that are recorded in the folders of watched runs."""

    jobs: dict[str, str]  #: filename → job
    folders: dict[str, list[str]]  #: run folders of each job


@dataclass(frozen=True)
class Job:
    """One of several jobs, with its log files and its run folders."""

    name: str
    files: list[LogFile]
    folders: list[str]  #: run folders of the job, if they contain all files of the job

    def written(self) -> float | None:
        """Return the time of the last write to any of the job's files on disk."""
        times: list[float] = []
        for file in self.files:
            try:
                times.append(os.stat(file.path).st_mtime)  # noqa: PTH116
            except (OSError, ValueError):
                continue  # the log is a member of an archive, or standard input
        return max(times, default=None)


def jobs_among(files: Sequence[LogFile], recorded: RunFolders) -> list[Job]:
    """Return the jobs of the files, sorted by name, or an empty list if all files can belong to one run."""
    owned = recorded.jobs
    paths = {file.name: file.path for file in files if file.plain}

    def one_training(job_of: Mapping[str, str]) -> bool:
        below: dict[str, list[str]] = {}
        for name, job in job_of.items():
            below.setdefault(job, []).append(paths.get(name, ""))
        return of_one_training(below)

    found = by_job([file.name for file in files], owned, one_training)
    by_name: dict[str, list[LogFile]] = {}
    for file in files:
        by_name.setdefault(file.name, []).append(file)
    jobs = []
    for name in sorted(found, key=natural):
        names = found[name]
        folders = (
            recorded.folders.get(name, []) if all(owned.get(file_name) == name for file_name in names) else []
        )
        job_files = [file for file_name in dict.fromkeys(names) for file in by_name[file_name]]
        jobs.append(Job(name, job_files, folders))
    return jobs
