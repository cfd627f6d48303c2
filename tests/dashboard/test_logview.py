"""The log around a time: the selected lines, their limits, and the folding of ranks."""

from __future__ import annotations

from datetime import timezone
from pathlib import Path

import pytest

from stallwatch_dashboard.data import log_copies
from stallwatch_dashboard.data.log_copies import Line, LogCopy, drawn, fold, lines_around, matching
from stallwatch_exporter.runs.copies import CriRecord, format_record

NOW = 1_795_000_000.0


def copy(folder: Path, rank: int | None, lines: list[tuple[float, str]], full: bool = True) -> LogCopy:
    path = folder / f"rank{rank}.log"
    with path.open("ab") as out:
        for seconds, text in lines:
            out.write(format_record(CriRecord(round((NOW + seconds) * 1e9), "stdout", full, text.encode())))
    return LogCopy(path, rank)


def test_only_lines_near_the_time_are_shown(tmp_path: Path) -> None:
    made = copy(tmp_path, 0, [(float(n), f"line {n}") for n in range(5000)])
    found = lines_around([made], NOW + 2500, 2.0)
    assert [line.text for line in found] == [f"line {n}" for n in range(2498, 2503)]
    assert [line.text for line in lines_around([made], NOW, 1.0)] == ["line 0", "line 1"]
    assert [line.text for line in lines_around([made], NOW + 4999, 1.0)] == ["line 4998", "line 4999"]
    assert lines_around([made], NOW + 9000, 5.0) == [] == lines_around([made], NOW - 9000, 5.0)


def test_dense_log_is_read_partially_around_the_time(tmp_path: Path) -> None:
    made = copy(tmp_path, 0, [(n / 1000, "x" * 80 + f" {n}") for n in range(20_000)])
    found = lines_around([made], NOW + 10, 60.0, most=64 * 1024)
    assert 200 < len(found) < 600
    assert found[0].time < NOW + 10 < found[-1].time


def test_invalid_and_missing_log_copies_are_ignored(tmp_path: Path) -> None:
    junk = tmp_path / "rank1.log"
    junk.write_bytes(b"\x00\xff" * 100_000)
    assert lines_around([LogCopy(junk, 1), LogCopy(tmp_path / "gone.log", 2)], NOW, 10.0) == []


def test_parts_of_a_line_are_joined(tmp_path: Path) -> None:
    copy(tmp_path, 0, [(0.0, "half a ")], full=False)
    made = copy(tmp_path, 0, [(0.5, "line"), (0.6, "\x1b[31mred\x1b[0m")])
    assert [(line.time - NOW, line.text) for line in lines_around([made], NOW, 5.0)] == [
        (0.0, "half a line"),
        (pytest.approx(0.6, abs=1e-3), "red"),
    ]


def test_secrets_are_masked(tmp_path: Path) -> None:
    made = copy(tmp_path, 0, [(0.0, "token hf_abcdefghijklmnopqrstuvwxyzABCDEFGH")])
    assert "hf_abcdef" not in lines_around([made], NOW, 5.0)[0].text


def test_equal_lines_of_several_ranks_are_folded() -> None:
    lines = [Line(NOW + rank / 100, (rank,), f"step 7 took 1.{rank} s") for rank in range(64)]
    lines += [
        Line(NOW + 1, (3,), "odd one"),
        Line(NOW + 5, (0,), "step 8 took 1 s"),
        Line(NOW + 5.1, (0,), "step 9 took 1 s"),
    ]
    folded = fold(lines)
    assert [(len(line.ranks), line.text) for line in folded] == [
        (64, "step 7 took 1.0 s"),
        (1, "odd one"),
        (1, "step 8 took 1 s"),
        (1, "step 9 took 1 s"),
    ]
    text = drawn(folded, NOW + 1, timezone.utc, "·").splitlines()
    assert "0–63" in text[0] and text[1].startswith("▶") and not text[0].startswith("▶")


def test_nearest_lines_are_shown_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copies, "MOST_LINES", 10)
    folded = fold([Line(NOW + n, (None,), chr(65 + n % 26) * (1 + n)) for n in range(100)])
    text = drawn(folded, NOW + 50, timezone.utc, "·").splitlines()
    assert len(text) == 10 and text[5].startswith("▶")


def test_search_ignores_order_and_case() -> None:
    lines = [Line(NOW, (0,), "CUDA out of memory"), Line(NOW, (1,), "all well")]
    assert matching(lines, "MEMORY cuda") == lines[:1] and matching(lines, "") == lines
