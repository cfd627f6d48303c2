"""Portions of a plain file's bytes that end at the boundaries of chunks."""

from __future__ import annotations

from pathlib import Path

from stallwatch_logs.inputs import is_sparse
from stallwatch_logs.portions import file_chunks
from stallwatch_rules.scan.chunks import ChunkCutter

SIZE = 4096


def test_portions_end_at_chunk_boundaries(tmp_path: Path) -> None:
    data = b"".join(b"line %d %s\r\n" % (n, b"x" * (n % 90)) for n in range(2000)) + b"y" * 200_000 + b"\nend"
    path = tmp_path / "train.log"
    path.write_bytes(data)
    cutter = ChunkCutter(SIZE)
    wanted = [cell.data for cell in [*cutter.feed(data), *cutter.finish()]]
    with path.open("rb") as raw:
        portions = list(file_chunks(raw.fileno(), 0, None, SIZE))
        begun = list(file_chunks(raw.fileno(), len(wanted[0]), 3 * SIZE, SIZE))
    assert portions == wanted
    assert b"".join(begun) == data[len(wanted[0]) : 3 * SIZE]
    assert is_sparse(str(tmp_path / "gone.log"))
