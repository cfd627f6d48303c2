"""Read files that show the state of each rank during a stall.

The files are outputs of ``stallwatch stacks --json`` on a host, or dumps of the torch flight recorder in the
form of pickles or JSON. The names of dumps are ``nccl_trace_rank_3`` or ``comm_lib_trace_rank_3``, unless
``TORCH_FR_DUMP_TEMP_FILE`` (in earlier versions, ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``) specifies a different
name (torch 2.13, FlightRecorder.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch_logs.inputs import InputError, InputProblem
from stallwatch_rules.decoding import convert, from_json
from stallwatch_rules.lines.hosts import hosts_of_paths
from stallwatch_rules.lines.ranks import rank_of_path
from stallwatch_rules.stacks.dumps import Dumped, is_dump, read_dump
from stallwatch_rules.stacks.folding import fold, over_hosts
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.spans import MOST_RANKS, spans_of
from stallwatch_rules.text.controls import TERMINAL_CODES, printable
from stallwatch_rules.text.foreign_json import NOT_JSON, read_json
from stallwatch_rules.text.foreign_pickle import MOST_BYTES, PickleRefusedError, read_pickle
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

if TYPE_CHECKING:
    from stallwatch_logs.log_files import LogFile

_MOST_COMMAS = 4_000_000  # maximum number of commas in JSON, as a limit on the number of values
_AS_JSON = (
    "write the dump as JSON with torch._C._distributed_c10d._dump_fr_trace_json() "
    "(in older versions of torch: _dump_nccl_trace_json())"
)
_NAMES = lazy(r"(?:.*[^\d.])?\d{1,6}(?:\.(?:json|pkl|pickle|bin|dump))?|.*\.json")
_DEFAULT = lazy(r".*(?:nccl|rccl|hccl|comm_lib)_trace_rank_?\d{1,6}")
_PICKLE = lazy(rb"\x80[\x02-\x05]")
_HEAD = 512  # number of bytes that are searched for the keys of a dump
_DUMPED = lazy(rb"pg_config|pg_status|comm_lib_version|nccl_version|nccl_comm_state")
_JSON_DUMP = lazy(
    rb'\s*\{\s*"(?:comm_lib_version|nccl_version|nccl_comm_state|entries|pg_config|pg_status|version)"\s*:'
)
_SNAPSHOT = lazy(rb'\s*\{\s*"time"\s*:\s*[\d.eE+]+\s*,\s*"seconds"\s*:\s*[\d.eE+-]+\s*,\s*"groups"\s*:')
_LAST_NUMBER = lazy(r"(\d{1,6})(?:\.[A-Za-z]+)*$")


def may_hold_ranks(path: str) -> bool:
    """Return whether a file with this name can contain the states of ranks. If so, check its head."""
    return _NAMES.fullmatch(_last(path)) is not None


def holds_ranks(path: str, head: bytes, *, named_by_user: bool) -> bool:
    """Return whether the head of a file shows that the file contains the states of ranks.

    A pickle that the user specified is always accepted.
    """
    if _PICKLE.match(head):
        return (
            named_by_user or _DUMPED.search(head) is not None or _DEFAULT.fullmatch(_last(path)) is not None
        )
    return _SNAPSHOT.match(head) is not None or _JSON_DUMP.match(head) is not None


def _last(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]


class RankStates(NamedTuple):
    """The states of the ranks, collected from all files."""

    stacks: StallStacks | None
    files: int  #: number of files that were read


def read_rank_files(
    files: Sequence[LogFile], problems: list[InputProblem], ranks_on: Mapping[int, str] | None = None
) -> RankStates:
    """Read stack snapshots and flight recorder dumps, and evaluate the states of all ranks together.

    `ranks_on` maps ranks to hosts. If several files show the state of the same rank, a snapshot takes
    precedence over a dump, and a host's newest dump takes precedence over its older dumps.
    """
    parts: dict[str, StallStacks] = {}
    dumps: dict[str, dict[int, Dumped]] = {}
    hosts = hosts_of_paths(file.name for file in files)
    count = 0
    for file in files:
        try:
            found = _read(file)
        except _RefusedError as refused:
            if not refused.sure:
                continue
            problems.append(InputProblem(file.name, None, refused.reason, refused.remedy))
            continue
        if found is None:
            continue
        count += 1
        if isinstance(found, StallStacks):
            host = next(iter(found.hosts), _last(file.name).removesuffix(".json"))
            parts[host if host not in parts else f"{host} ({_last(file.name)})"] = found
            continue
        rank = found.answer.rank
        of_host = dumps.setdefault(hosts.get(file.name) or (ranks_on or {}).get(rank, ""), {})
        if rank not in of_host or of_host[rank].time <= found.time:
            of_host[rank] = found
    return RankStates(_together(parts, dumps), count)


def _together(parts: dict[str, StallStacks], dumps: Mapping[str, Mapping[int, Dumped]]) -> StallStacks | None:
    seen = {rank for part in parts.values() for group in part.groups for rank in group.ranks}
    for host, by_rank in dumps.items():
        left = [dumped for rank, dumped in sorted(by_rank.items()) if rank not in seen]
        if left:
            doing = {dumped.answer.rank: dumped.doing for dumped in left}
            time = max(dumped.time for dumped in left)
            part = fold([dumped.answer for dumped in left], time=time, doing=doing)
            if not parts and len(dumps) == 1 and not host:
                return _clean(part)
            if host in parts:  # the host has a snapshot of some ranks and dumps of other ranks
                part = replace(part, hosts={host: spans_of(doing)})
                host = f"{host} (torch)"
            parts[host] = part
    if not parts:
        return None
    stacks = over_hosts(parts)
    return _clean(replace(stacks, hosts={host: ranks for host, ranks in stacks.hosts.items() if host}))


def _clean(stacks: StallStacks) -> StallStacks:
    """Because the files are untrusted, remove secrets and terminal control characters from the stacks."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return redact(printable(TERMINAL_CODES.sub("", value)))
        if isinstance(value, list):
            return [clean(each) for each in value]
        return {clean(key): clean(each) for key, each in value.items()} if isinstance(value, dict) else value

    return convert(clean(msgspec.to_builtins(stacks, str_keys=True)), StallStacks, str_keys=True)


class _RefusedError(Exception):
    """An error for a file that cannot be read, with the reason and a remedy for the user."""

    def __init__(self, reason: str, remedy: str, *, sure: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy
        self.sure = sure  #: True if the file is certainly meant to contain the states of ranks


def _read(file: LogFile) -> StallStacks | Dumped | None:
    """Return the content of a file, or ``None`` if the user did not specify it and it has no rank states."""
    data = _bytes(file)
    if _SNAPSHOT.match(data):
        try:
            return _sound(from_json(data, StallStacks))
        except NOT_JSON:
            raise _RefusedError(
                "the file is not a snapshot from this version of Stallwatch",
                "run stallwatch stacks --json again",
            ) from None
    sure = file.named_by_user or _DEFAULT.fullmatch(_last(file.name)) is not None
    value = _value(data, sure=sure or _DUMPED.search(data, 0, _HEAD) is not None)
    if not is_dump(value):
        if sure:
            reason = "the file is not a dump of torch's flight recorder"
            raise _RefusedError(reason, "specify the files that torch wrote")
        return None
    rank = _rank(file.name)
    if rank is None:
        remedy = "include the rank in the name, as in nccl_trace_rank_3"
        raise _RefusedError("the name of the file does not contain a rank", remedy)
    return read_dump(value, rank)


def _sound(stacks: StallStacks) -> StallStacks:
    ranks = [rank for group in stacks.groups for rank in group.ranks]
    if not all(group.ranks for group in stacks.groups) or not all(0 <= rank < MOST_RANKS for rank in ranks):
        raise ValueError("ranks")
    if len(set(ranks)) < len(ranks) or not 0 <= stacks.elsewhere < MOST_RANKS:
        raise ValueError("ranks")
    return stacks


def _bytes(file: LogFile) -> bytes:
    held = bytearray()
    try:
        file.limits.check_time()
        for chunk in file.open_chunks():
            held += chunk
            if len(held) > MOST_BYTES:
                raise _RefusedError(
                    f"the file is larger than {MOST_BYTES >> 20} MiB",
                    "set TORCH_FR_BUFFER_SIZE to a smaller value",
                )
    except InputError as error:
        raise _RefusedError(error.message, error.remedy) from None
    except OSError as error:
        raise _RefusedError(f"cannot be read ({error.strerror or error})", "check the permissions") from None
    return bytes(held)


def _value(data: bytes, *, sure: bool) -> Any:
    if _PICKLE.match(data):
        try:
            return read_pickle(data)
        except PickleRefusedError as error:
            reason = f"the file is a pickle that {error}; it was not loaded"
            raise _RefusedError(reason, _AS_JSON, sure=sure) from None
    try:
        if sum(map(data.count, b",[{")) > _MOST_COMMAS:
            raise ValueError("too many values")
        return read_json(data)
    except NOT_JSON as error:
        raise _RefusedError(
            f"the file is not valid JSON ({str(error)[:80]})", "write the dump again", sure=sure
        ) from None


def _rank(name: str) -> int | None:
    last = _LAST_NUMBER.search(_last(name))
    rank = int(last[1]) if last is not None else rank_of_path(name)
    return rank if rank is not None and rank < MOST_RANKS else None
