"""Files of ``torch.save``: a zip archive with a pickle and a member per storage."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from stallwatch_exporter.checkpoints.faults import Fault, empty_tensors, examples
from stallwatch_exporter.checkpoints.torchpickle import PickleFacts, pickle_facts
from stallwatch_rules.text.lazy import lazy

MAX_PICKLE = 32 << 20  #: bytes; the pickle holds names and sizes, the numbers lie in members of their own
_OURS = lazy(r"(?:pytorch_model|adapter_model|optimizer|scheduler|rng_state)\b.*|.*_states\.pt")
_ZIP = b"PK\x03\x04"
_PICKLE = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))  # those that ``pickle`` has a mark for


def is_torch(path: Path) -> bool:
    """Whether the file's name or its beginning says that torch wrote it; ``OSError`` where it cannot be read.

    Other programs end their files' names in ``.bin`` as well.
    """
    return _is_torch(path.name, _start(path))


def _is_torch(name: str, start: bytes) -> bool:
    return _OURS.fullmatch(name) is not None or start.startswith((_ZIP, *_PICKLE))


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def check_torch(path: Path, *, partitioned: bool = False) -> Iterator[Fault]:
    """Faults of one file; ``OSError`` where it cannot be read.

    ``partitioned``: it is one rank's part of a ZeRO-3 checkpoint, whose parameters are empty by design. A
    file in torch's format before 1.6, a bare pickle, is only looked at for its beginning.
    """
    start = _start(path)
    if not _is_torch(path.name, start) or start.startswith(_PICKLE):
        return
    if start != _ZIP:
        yield Fault(path, "no-torch-file", "neither a zip archive nor a pickle", "既不是 zip 也不是 pickle")
        return
    try:
        facts, members = _read(path)
    except zipfile.BadZipFile:
        yield Fault(path, "truncated", "the zip archive has no end: cut short", "zip 没有结尾：文件被截断")
        return
    except (ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        yield Fault(
            path, "pickle-unreadable", f"its pickle breaks off: {error}", f"其中的 pickle 不完整：{error}"
        )
        return
    if facts is None:
        return
    absent = sorted(facts.keys - members - {""})
    if absent and members:
        yield Fault(
            path,
            "missing-storages",
            f"the numbers of {len(absent)} tensors are missing: {examples(absent)}",
            f"缺少 {len(absent)} 个张量的数据：{examples(absent)}",
        )
    if not partitioned:
        yield from empty_tensors(path, facts.empty, facts.tensors)


def facts_of(path: Path) -> PickleFacts | None:
    """What the file's pickle tells; ``None`` where it cannot be read."""
    try:
        return _read(path)[0]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError):
        return None


def _read(path: Path) -> tuple[PickleFacts | None, set[str]]:
    """The pickle's facts and the keys of the storages that are there; no facts without ``data.pkl``."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        keys = {member.filename.rpartition("/data/")[2] for member in members if "/data/" in member.filename}
        for member in members:
            if not member.filename.endswith("/data.pkl"):
                continue
            if member.file_size > MAX_PICKLE:
                return None, keys
            with archive.open(member) as file:
                return pickle_facts(file), keys
    return None, set()
