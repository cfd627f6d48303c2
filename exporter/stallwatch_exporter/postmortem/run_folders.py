"""Group stored run folders by run, and determine the host and rank of each file in the folders."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch_exporter.runs.reserve import NAME
from stallwatch_exporter.runs.runfolder import AgentInfo, by_start, read_info
from stallwatch_logs.inputs import InputProblem
from stallwatch_logs.jobs import RunFolders
from stallwatch_logs.log_files import LogFile
from stallwatch_rules.lines.hosts import hosts_of_paths
from stallwatch_rules.lines.ranks import has_local_rank, local_ranks
from stallwatch_rules.messages import Message, message
from stallwatch_rules.stacks.spans import ranks_in
from stallwatch_rules.text.digest import fold_names, natural_order
from stallwatch_rules.text.lazy import lazy

TOGETHER = 900.0  #: seconds within which the nodes of a run start, because they wait for each other
_NUMBER = lazy(r"\d+")


def is_recorded(folder: str | os.PathLike[str]) -> bool:
    """Return whether this folder contains the record of a run, or of one host of a run."""
    # Path.is_file raises an error if the folder cannot be entered.
    return any(os.path.isfile(Path(folder) / name) for name in ("agent.json", NAME))  # noqa: PTH113


def with_other_hosts(
    paths: Sequence[str | os.PathLike[str]],
) -> tuple[Sequence[str | os.PathLike[str]], list[Message]]:
    """If the only path is one host's run folder, add the other hosts' folders from the parent folder.

    Return the paths, and a note on the added folders.
    """
    if len(paths) != 1 or not is_recorded(paths[0]):
        return paths, []
    given = Path(paths[0])
    own = read_info(given)
    if own is None or not own.key:
        return paths, []
    beside, place = {str(given): own}, Path(os.path.abspath(given))  # noqa: PTH100 - ``runs/..`` has no name
    parent = given.parent if given.name == place.name else place.parent
    known = {_agent_of(own)}
    with suppress(OSError):
        for name in sorted(os.listdir(parent)):  # noqa: PTH208
            # Skip links, which can point anywhere.
            is_other = name != place.name and not (parent / name).is_symlink()
            info = read_info(parent / name) if is_other else None
            if info is not None and info.key == own.key and _agent_of(info) not in known:
                known.add(_agent_of(info))
                beside[str(parent / name)] = info
    group = next(group for group in start_groups(beside) if str(given) in group)
    others = [folder for folder in group if folder != str(given)]
    if not others:
        return paths, []
    hosts = {beside[folder].host_in_run for folder in group}
    names = fold_names(sorted(hosts - {own.host_in_run})) or own.host_in_run
    return [given, *others], [message("diagnosis.other-hosts", run=own.run, hosts=names)]


def naming_followed_files(problem: InputProblem) -> InputProblem:
    """Return the problem. If it concerns a run folder of ``stallwatch tail``, replace the remedy.

    Such a folder has no copies of logs, so the remedy names the files that the command followed.
    """
    if not is_recorded(problem.path):
        return problem
    info = read_info(Path(problem.path))
    if info is None or info.command[:2] != ["stallwatch", "tail"]:
        return problem
    followed = ", ".join(str(Path(info.cwd) / name) for name in info.command[2:])
    return msgspec.structs.replace(
        problem, remedy=f"specify the files that stallwatch tail followed: {followed}"
    )


def _agent_of(info: AgentInfo) -> tuple[object, ...]:
    """Return a key that identifies an agent and that is the same in all copies of the agent's record."""
    return info.host, info.namespace, info.pid, info.started_at, info.folder


def folders_of_run(files: Sequence[LogFile], run_folders: Sequence[str]) -> list[Path]:
    """Return the folders of the run that contains all files, or an empty list if there are several runs."""
    known = {*run_folders}
    inside = [known & {*_around(file)} for file in files if file.path or file.folder]
    if not all(inside):
        return []
    chosen = known
    if len(known) > 1:
        keyed = {folder: info for folder, info in _infos(run_folders).items() if info.key}
        groups = [{*group} for group in start_groups(keyed)]
        groups += [{folder} for folder in known.difference(*groups)]
        used = set[str]().union(*inside) or known
        of_files = [group for group in groups if not used.isdisjoint(group)]
        chosen = of_files[0] if len(of_files) == 1 else set()
    return [Path(folder) for folder in run_folders if folder in chosen]


class Placed(NamedTuple):
    """Files of a run, and the hosts and ranks that the files' folders specify."""

    files: Sequence[LogFile]
    hosts: dict[str, str]  #: host by filename, if there are several hosts
    ranks_on: dict[int, str]  #: host by rank, if there are several hosts


def placed(files: Sequence[LogFile], folders: Sequence[Path]) -> Placed:
    """Replace local ranks with global ranks, both for files and for launchers' line prefixes.

    The replacement is possible only if the agents recorded the ranks of their hosts.
    """
    known = {
        folder: (info.host_in_run, ranks_in(info.ranks), info.first_rank)
        for folder, info in _infos(folders).items()
    }
    several = len({host for host, *_ in known.values()}) > 1
    here, hosts = [], {}
    for file in files:
        around = (known[folder] for folder in _around(file) if folder in known)
        host, ranks, first = next(around, ("", (), None))
        rank, local = file.rank, local_ranks(ranks, None if first is not None and first < 0 else first)
        if rank is not None and rank < len(local):
            rank = local[rank]
        if rank is None and len(ranks) == 1 and len(known) > 1:
            rank = ranks[0]
        if host and several:
            hosts[file.name] = host
        changed = (rank, local) != (file.rank, file.local_ranks)
        here.append(replace(file, rank=rank, local_ranks=local) if changed else file)
    ranks_on = hosts_of_ranks((rank, host) for host, ranks, _ in known.values() for rank in ranks)
    return Placed(here, hosts, ranks_on if several else {})


def placed_by_name(files: Sequence[LogFile]) -> tuple[Placed, Message | None]:
    """Return the files, with hosts and ranks taken from the filenames. If the ranks are a guess, add a note.

    If the names contain only local ranks and no line contains a rank, the ranks are numbered host by host, in
    the order of the hosts' names. The ranks of different hosts then differ.
    """
    hosts = hosts_of_paths(file.name for file in files) if len(files) > 1 else {}
    each = _local_ranks_on_each(files, hosts)
    note = None
    if each:
        names = sorted({*hosts.values()}, key=natural_order)
        first = {name: each * position for position, name in enumerate(names)}
        files = [
            replace(file, rank=file.rank + first[hosts[file.name]]) if file.rank is not None else file
            for file in files
        ]
        note = message("diagnosis.numbered-by-host", rank=each, host=names[1])
    ranks_on = hosts_of_ranks(
        (file.rank, hosts[file.name]) for file in files if file.rank is not None and file.name in hosts
    )
    return Placed(files, hosts, ranks_on), note


def _local_ranks_on_each(files: Sequence[LogFile], hosts: Mapping[str, str]) -> int:
    """If the logs contain only local ranks, return the number of ranks on each host. Otherwise, return 0."""
    ranked = [file for file in files if file.rank is not None]
    if not hosts or not all(file.name in hosts and has_local_rank(file.name) for file in ranked):
        return 0
    ranks = {(hosts[file.name], file.rank or 0) for file in ranked}
    each = 1 + max((rank for _, rank in ranks), default=0)
    begun = {host for host, rank in ranks if rank == 0}
    if each == 1 or begun != {*hosts.values()} or any(map(_states_a_rank, ranked)):
        return 0
    return each


_STATED_RANK = lazy(rb"\[(?:[^\]\n]{0,80} )?[Rr]ank ?\d+\]")
_SEARCHED = 64 * 1024  #: number of bytes searched for a rank, both at the start and at the end of a file


def _states_a_rank(file: LogFile) -> bool:
    """Return whether any line in a file contains a rank. If the file cannot be searched, return True."""
    if not file.plain or not file.path:
        return True
    try:
        with Path(file.path).open("rb") as raw:
            head = raw.read(_SEARCHED)
            raw.seek(max(len(head), file.size - _SEARCHED))
            tail = raw.read(_SEARCHED)
    except OSError:
        return True
    return _STATED_RANK.search(head) is not None or _STATED_RANK.search(tail) is not None


def hosts_of_ranks(places: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return the host of each rank, excluding numbers that occur on several hosts, such as local ranks."""
    found: dict[int, set[str]] = {}
    for rank, host in places:
        found.setdefault(rank, set()).add(host)
    return {rank: hosts.pop() for rank, hosts in found.items() if len(hosts) == 1}


def _around(file: LogFile) -> list[str]:
    """Return the folders that might be the run folder of this file."""
    return [file.folder] if file.folder else _folders_around(file.path)


def _folders_around(path: str) -> list[str]:
    """Return the folder of a file. If that folder is named ``ranks``, also return its parent."""
    parent = os.path.dirname(path)  # noqa: PTH120 - ten times as fast as pathlib
    return [parent, os.path.dirname(parent)] if os.path.basename(parent) == "ranks" else [parent]  # noqa: PTH119, PTH120


def stored_runs_of(files: Iterable[LogFile], run_folders: Iterable[str] = ()) -> RunFolders:
    """Return the stored runs that contain these files.

    Each agent of a run has its own folder. A run also includes the matching folders in `run_folders` that
    contain none of the files.
    """
    folder_of: dict[str, str] = {}
    seen: dict[str, str | None] = {}
    in_archives: dict[str, str] = {}  # folder name within the archive, by the path of the temporary copy
    for file in files:
        places = _around(file)
        if places[0] not in seen:
            seen[places[0]] = next((each for each in places if (Path(each) / "agent.json").is_file()), None)
        if folder := seen[places[0]]:
            folder_of[file.name] = folder
            if file.folder:
                in_archives.setdefault(folder, _folders_around(file.name)[-1])
    folders = dict.fromkeys([*folder_of.values(), *run_folders])
    if len({*folder_of.values()}) < 2:
        return RunFolders({}, {})
    groups = start_groups(_infos(folders))
    # A group is named after its first folder, or by the folder's path if another group has the same name.
    often = Counter(Path(group[0]).name for group in groups)
    named = {
        in_archives.get(group[0], group[0]) if often[name := Path(group[0]).name] > 1 else name: group
        for group in groups
    }
    jobs = {folder: name for name, group in named.items() for folder in group}
    return RunFolders({name: jobs[folder] for name, folder in folder_of.items() if folder in jobs}, named)


def _infos(folders: Iterable[str | Path]) -> dict[str, AgentInfo]:
    """Return the agents' records from these folders, by folder."""
    return {str(folder): info for folder in folders if (info := read_info(Path(folder))) is not None}


def start_groups(runs: Mapping[str, AgentInfo]) -> list[list[str]]:
    """Group the run folders that might belong to the same start of a job.

    If a scheduler or launcher provided a key, such folders have the same key. Otherwise, their agents started
    at about the same time, in the same folder, and with the same command except for numbers.
    """
    alike: dict[tuple[object, ...], list[tuple[str, AgentInfo]]] = {}
    for folder, info in sorted(runs.items(), key=lambda each: each[0]):
        words = tuple(_NUMBER.sub("0", word) for word in info.command)
        same = (info.key,) if info.key else (words, _NUMBER.sub("0", info.cwd))
        alike.setdefault(same, []).append((folder, info))
    groups: list[list[str]] = []
    for agents in alike.values():
        within = math.inf if agents[0][1].key else TOGETHER
        groups += ([folder for folder, _ in start] for start in by_start(agents, within))
    return groups
