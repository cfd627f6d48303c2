"""Files that are numbered by ranks, as their own lines prove."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallwatch_logs.log_files import expand


def write(folder: Path, given: dict[str, list[int]]) -> None:
    for name, ranks in given.items():
        lines = [f"2025-11-15 10:00:30 - INFO - rank {rank} - step: 1 loss: 1.99\n" for rank in ranks]
        (folder / name).write_text("Setting ds_accelerator to npu\n" + "".join(lines))


def ranks(folder: Path) -> list[int | None]:
    return [file.rank for file in expand([folder])[0]]


def test_file_numbers_confirmed_by_lines_are_ranks(tmp_path: Path) -> None:
    write(tmp_path, {f"worker-{rank}.log": [rank, rank] for rank in (0, 1, 3)})
    (tmp_path / "worker-2.log").write_text("[ERROR] (PID:7, Device:2, RankID:2) one\n[ERROR] RankID:2 more\n")
    assert ranks(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "expected",
    [
        {"worker-0.log": [0, 0], "worker-1.log": [8, 8]},  # numbered by nodes, whose first rank prints
        {"worker-0.log": [0, 0], "worker-1.log": [1, 2, 1]},
        {"worker-0.log": [0, 0], "worker-1.log": []},
        {"worker-0.log": [0, 0], "other.log": [1, 1]},
        {"worker-0.log": [0, 0], "worker-1.log": [1]},
    ],
)
def test_unconfirmed_file_numbers_are_not_ranks(tmp_path: Path, expected: dict[str, list[int]]) -> None:
    write(tmp_path, expected)
    assert set(ranks(tmp_path)) == {None}
