"""Check the files of a checkpoint that any program wrote. The filenames determine which files are checked.

DeepSpeed writes a file named ``latest``, which names the folder of the checkpoint. The folder contains
``[bf16_]zero_pp_rank_<dp>_mp_rank_<mp>_optim_states.pt`` for each rank. For the model, it contains
``mp_rank_<mp>_model_states.pt`` (stages 1 and 2) or ``zero_pp_rank_<dp>_mp_rank_<mp>_model_states.pt`` (stage
3). The names are from DeepSpeed 0.19.8, ``runtime/engine.py`` (``_get_zero_ckpt_name``, ``_get_ckpt_name``).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stallwatch_exporter.checkpoints.formats import (
    Fault,
    check_safetensors,
    check_torch,
    examples,
    facts_of,
    fault,
    is_torch,
    tensor_names,
)
from stallwatch_lint.diagnostic import Diagnostic
from stallwatch_rules.files import open_regular
from stallwatch_rules.messages import message
from stallwatch_rules.text.controls import printable
from stallwatch_rules.text.lazy import lazy

_TORCH = (".bin", ".pt", ".pth")
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin.index.json", *_TORCH)
_OPTIMIZER = lazy(r"(?:bf16_|fp16_)?zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt")
_PARTITIONED = lazy(r"zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_model_states\.pt")
_WHOLE = lazy(r"mp_rank_(?P<mp>\d+)_model_states\.pt")
_MOST_RANKS = 1 << 17
MAX_INDEX = 32 << 20
#: Kinds of faults that have their own explanation. All other kinds share one explanation.
_EXPLAINED = ("empty-tensors", "latest-missing", "unreadable")
MOST_NAMES = 200_000  #: Maximum number of files and folders below a path. No real checkpoint has that many.
_REPORT_EVERY = 20_000  #: number of names between two calls to `on_count`


class FolderContent(NamedTuple):
    """The folders below a path and the names of the files in these folders."""

    folders: list[tuple[Path, list[str]]]
    whole: bool = True  #: false if the listing is incomplete


def listed(
    path: Path, most: int = MOST_NAMES, on_count: Callable[[int], object] | None = None
) -> FolderContent:
    """List the files in a folder and in the folders below it. If the path is a file, list only that file.

    Links to folders are not followed. The listing stops after `most` names because a large folder such as
    /home is not a checkpoint. `on_count` periodically receives the number of names found so far.

    Raises:
        FileNotFoundError: The path does not exist.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    if path.is_file():
        return FolderContent([(path.parent, [path.name])])
    found: list[tuple[Path, list[str]]] = []
    count = reported = 0
    for folder, folders, names in os.walk(path):
        folders.sort()
        count += len(folders) + len(names)
        if count > most:
            return FolderContent(found, whole=False)
        if on_count is not None and count - reported >= _REPORT_EVERY:
            reported = count
            on_count(count)
        found.append((Path(folder), sorted(names)))
    return FolderContent(found)


def check_checkpoint(path: Path, below: FolderContent | None = None) -> list[Fault]:
    """Return the faults in a checkpoint, which is either a folder with all its content or a single file.

    Only headers, tables of contents, and sizes are read. Nothing is unpickled. An unreadable file counts as a
    fault. `below` is the result of `listed` for this path, if the caller already has it.

    Raises:
        FileNotFoundError: The path does not exist.
    """
    faults: list[Fault] = []
    for folder, names in (below or listed(path)).folders:
        for name in names:
            try:
                faults += _file_faults(folder / name)
            except OSError as error:
                what = message("checkpoints.unreadable", reason=error.strerror or str(error))
                faults.append(Fault(folder / name, "unreadable", what, "permission-denied"))
        if not path.is_file():
            faults += _zero_faults(folder, names)
    return faults


def checked_files(path: Path, below: FolderContent | None = None) -> tuple[int, list[str]]:
    """Return the number of files that `check_checkpoint` checks, and the names of files that it cannot check.

    A file cannot be checked if it has an extension that torch uses but the format of another program.
    """
    named = [folder / name for folder, names in (below or listed(path)).folders for name in names]
    files = [file for file in named if _known(file.name)]
    foreign = []
    for file in files:
        with contextlib.suppress(OSError):  # `check_checkpoint` reports an unreadable file as a fault
            if file.name.endswith(_TORCH) and file.stat().st_size > 0 and not is_torch(file):
                foreign.append(file.name)
    return len(files) - len(foreign), foreign


def _known(name: str) -> bool:
    return name.endswith(_WEIGHTS) or name == "latest"


def _file_faults(path: Path) -> Iterator[Fault]:
    name = path.name
    if not _known(name):
        return
    if not path.stat().st_size:
        yield fault(path, "empty-file")
    elif name == "latest":
        yield from _latest_faults(path)
    elif name.endswith(".index.json"):
        yield from _index_faults(path)
    elif name.endswith(".safetensors"):
        yield from check_safetensors(path)
    else:
        yield from check_torch(path, partitioned=_PARTITIONED.fullmatch(name) is not None)


def _index_faults(path: Path) -> Iterator[Fault]:
    """Yield the faults in an index (``*.index.json``), such as missing shards and missing tensors."""
    if path.stat().st_size > MAX_INDEX:
        yield fault(path, "index-unreadable", "index-too-large")
        return
    try:
        with open_regular(path) as file:
            shards = json.loads(file.read())["weight_map"]
        named = {str(name): str(shard) for name, shard in shards.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        yield fault(path, "index-unreadable")
        return
    shards = sorted(set(named.values()))
    # A shard is always in the folder of its index, so names that point to a different folder are not
    # followed.
    outside = [shard for shard in shards if Path(shard).name != shard]
    missing = [shard for shard in shards if shard not in outside and not (path.parent / shard).is_file()]
    if outside:
        yield fault(path, "index-outside", names=examples(outside))
    if missing:
        yield fault(path, "missing-shards", shards=len(missing), names=examples(missing))
    absent: list[str] = []  # names of tensors that are missing from their shards
    for shard in shards:
        if shard.endswith(".safetensors") and shard not in (*outside, *missing):
            held = tensor_names(path.parent / shard)  # empty if the header cannot be read
            absent += [name for name, place in named.items() if held and place == shard and name not in held]
    if absent:
        yield fault(path, "missing-tensors", tensors=len(absent), names=examples(absent))


def _latest_faults(latest: Path) -> Iterator[Fault]:
    """Yield the faults in a ``latest`` file. Raises `OSError` if the file cannot be read."""
    with latest.open("rb") as file:
        tag = file.read(4096).decode("utf-8", "replace").strip()
    if not tag or Path(tag).name != tag:
        yield fault(latest, "latest-unreadable")
    elif not (latest.parent / tag).is_dir():
        what = message("checkpoints.latest-missing", folder=printable(tag))
        yield Fault(latest, "latest-missing", what, "resume-checkpoint-failed")


def _zero_faults(folder: Path, names: list[str]) -> Iterator[Fault]:
    """Yield faults for the files that are missing from the DeepSpeed checkpoint in this folder."""

    def parts_of(pattern: Any) -> set[tuple[int, int]]:
        return {(int(found["mp"]), int(found["dp"])) for name in names if (found := pattern.fullmatch(name))}

    optimizer, parts = parts_of(_OPTIMIZER), parts_of(_PARTITIONED)
    whole = {int(found["mp"]) for name in names if (found := _WHOLE.fullmatch(name))}
    if not optimizer:
        return
    wanted = _wanted(folder, names, optimizer | parts)
    yield from _missing(folder, "optim_states", wanted - optimizer)
    if parts:
        yield from _missing(folder, "model_states", wanted - parts)
    elif not whole and not any(name.startswith("layer_") for name in names):
        yield fault(folder, "missing-model-states", "no-model-states")


def _wanted(folder: Path, names: list[str], seen: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the pairs of model rank and data rank whose parts a complete checkpoint contains.

    The number of data ranks is the larger of two values: the world size that the checkpoint records, and the
    highest data rank in the filenames plus one.
    """
    ranks = max(dp for _, dp in seen) + 1
    for name in sorted(names):
        if name.endswith("_model_states.pt"):
            facts = facts_of(folder / name)
            if facts is not None and "dp_world_size" in facts.numbers:
                ranks = max(ranks, facts.numbers["dp_world_size"])
                break
    parallel = {mp for mp, _ in seen}
    if len(parallel) * ranks > _MOST_RANKS:  # a file is damaged, or the filenames have a different meaning
        return seen
    return {(mp, dp) for mp in parallel for dp in range(ranks)}


def _missing(folder: Path, kind: str, missing: set[tuple[int, int]]) -> Iterator[Fault]:
    if missing:
        ranks = [str(dp) for _, dp in sorted(missing)]
        kind_of = f"missing-{kind.replace('_', '-')}"
        yield fault(folder, kind_of, "missing-parts", states=kind, ranks=examples(ranks))


def diagnostic_of(fault: Fault) -> Diagnostic:
    """Return a diagnostic that describes a fault. The name of its check starts with ``checkpoint-``."""
    about = fault.kind if fault.kind in _EXPLAINED else "cut"
    return Diagnostic(
        f"checkpoint-{fault.kind}",
        "fails" if fault.fails else "advice",
        fault.what,
        message(f"checkpoints.why-{about}"),
        message(f"checkpoints.fix-{about}"),
        fault.rule,
        printable(str(fault.path)),
    )
