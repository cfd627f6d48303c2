"""Which log files lie in folders that Stallwatch kept of runs, and which of those may be one training's.

Where each node of a training is watched by an agent of its own, each has a folder: started at about the same
time, where and by what is the same but for numbers. Only folders of which that cannot be are separate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stallwatch_exporter.runs.runfolder import AgentInfo, read_info
from stallwatch_logs.jobs import RunFolders
from stallwatch_rules.text.lazy import lazy

TOGETHER = 900.0  #: seconds within which the nodes of one training start: as long as they wait for each other

_NUMBER = lazy(r"\d+")


def own_runs(paths: Iterable[str]) -> RunFolders:
    """The runs in whose folders files lie. Looks at each folder once."""
    folder_of: dict[str, str] = {}
    seen: dict[Path, Path | None] = {}
    for path in paths:
        above = Path(path).parent
        if above not in seen:
            seen[above] = next((one for one in _above(above) if (one / "agent.json").is_file()), None)
        folder = seen[above]
        if folder is not None:
            folder_of[path] = str(folder)
    folders = dict.fromkeys(folder_of.values())
    if len(folders) < 2:
        return RunFolders({}, {})
    known = {folder: info for folder in folders if (info := read_info(Path(folder))) is not None}
    named = _named(apart(known))
    jobs = {folder: name for name, group in named.items() for folder in group}
    return RunFolders({path: jobs[folder] for path, folder in folder_of.items() if folder in jobs}, named)


def _above(folder: Path) -> Sequence[Path]:
    return (folder, folder.parent) if folder.name == "ranks" else (folder,)


def apart(runs: Mapping[str, AgentInfo]) -> list[list[str]]:
    """Folders of runs in groups of which each may be one training."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for folder, info in runs.items():
        words = tuple(_NUMBER.sub("0", word) for word in info.command)
        alike.setdefault((words, _NUMBER.sub("0", info.cwd)), []).append(folder)
    groups: list[list[str]] = []
    for folders in alike.values():
        folders.sort(key=lambda folder: (runs[folder].started_at, folder))
        began = ended = float("-inf")
        for folder in folders:
            info = runs[folder]
            if info.started_at - began <= TOGETHER and info.started_at <= ended:
                groups[-1].append(folder)
            else:
                groups.append([folder])
                ended = float("-inf")
            began = info.started_at
            ended = max(ended, info.ended_at if info.ended_at is not None else info.updated_at)
    return groups


def _named(groups: Iterable[list[str]]) -> dict[str, list[str]]:
    """The groups by the name of the first folder in each; by its path where that is another's name, too."""
    known = list(groups)
    often = Counter(Path(group[0]).name for group in known)
    return {group[0] if often[Path(group[0]).name] > 1 else Path(group[0]).name: group for group in known}
