"""Pickles in place of a flight recorder's dump: read as data, or refused in a line, never loaded."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.text import foreign_pickle
from stallwatch_rules.text.foreign_pickle import MOST_BYTES, PickleRefusedError, read_pickle


class Calls:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def laughs(levels: int, opcode: bytes) -> bytes:
    """Each level holds the one below it ten times: by references to the memo."""
    parts = [b"\x80\x02", b"K\x01q\x00"]
    for level in range(levels):
        parts.append(
            b"(" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 9 + opcode + b"q" + bytes([level + 1])
        )
    return b"".join(parts) + b"."


HOSTILE = {
    "global": (b"cos\nsystem\n(S'true'\ntR.", "GLOBAL at byte 0"),
    "stack-global": (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL at byte 14"),
    "instance": (b"(S'true'\nios\nsystem\n.", "STRING"),
    "extension": (b"\x80\x02\x82\x01.", "EXT1"),
    "persistent": (b"\x80\x02K\x01Q.", "BINPERSID"),
    "buffer": (b"\x80\x05\x97.", "NEXT_BUFFER"),
    "long": (b"\x80\x02\x8b" + struct.pack("<i", 1 << 30), "LONG4"),
    "digits": (b"L" + b"9" * 100_000 + b"L\n.", "LONG at byte 0"),
    "laughs": (laughs(30, b"l"), "refers to itself"),
    "laughing-tuples": (laughs(30, b"t"), "refers to itself"),
    "laughing-keys": (b"\x80\x02(K\x01tq\x00(h\x00K\x01d.", "corrupt"),
    "itself": (b"\x80\x02]q\x00h\x00a.", "refers to itself"),
    "nested": (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "refers to itself"),
    "marks": (b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".", "refers to itself"),
    "frame": (b"\x80\x04\x95" + b"\xff" * 8 + b"}.", ""),
    "huge-text": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"a.", "corrupt"),
    "memo": (b"\x80\x02h\x07.", "corrupt"),
    "popped": (b"\x80\x02a.", "corrupt"),
    "no-mark": (b"\x80\x02K\x01t.", "corrupt"),
    "cut": (b"\x80\x02}(X\x07\x00\x00\x00ver", "corrupt"),
    "endless": (b"\x80\x02}", "is truncated"),
    "empty": (b"", "is truncated"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_pickle_with_code_is_rejected_in_bounded_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_pickle, "MOST_VALUES", 300_000)  # for a short test
    data, why = HOSTILE[name]
    tracemalloc.start()
    try:
        read_pickle(data)
        refused = ""
    except PickleRefusedError as error:
        refused = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert why in refused and bool(refused) is bool(why), refused
    assert peak < 64 << 20


def test_oversized_pickle_is_not_read() -> None:
    with pytest.raises(PickleRefusedError, match="larger than 64 MiB"):
        read_pickle(bytes(MOST_BYTES + 1))


def test_plain_data_of_every_pickle_protocol_is_read() -> None:
    value = {"a": [1, -7, 2**40, 1.5, None, True, "ü" * 300, b"x"], "b": {"c": ((1,), (1, 2), (1, 2, 3), ())}}
    for protocol in (3, 4, 5):
        assert read_pickle(pickle.dumps(value, protocol)) == value


def test_hostile_dump_is_reported_in_one_line_and_runs_nothing(tmp_path: Path, catalogue: Catalogue) -> None:
    """By torch's name, or whatever it is called if it looks like a dump or the user names it."""
    ran = tmp_path / "ran"
    folder = tmp_path / "dumps"
    folder.mkdir()
    for name in ("nccl_trace_rank_7", "mine"):
        (folder / name).write_bytes(pickle.dumps({"version": "2.10", "pg_config": Calls(ran)}))
    (tmp_path / "other").write_bytes(pickle.dumps([1, Calls(ran)]))
    for path, count in ((folder, 2), (tmp_path / "other", 1)):
        problems = [str(problem) for problem in diagnose_paths([path], Options(catalogue))[1]]
        assert len(problems) == count
        for part in ("STACK_GLOBAL", "was not loaded", "_dump_fr_trace_json"):
            assert all(part in problem and "\n" not in problem for problem in problems)
    assert not ran.exists()
