"""The last lines of a run's log copies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone
from pathlib import Path

from stallwatch_dashboard.data import log_copies
from stallwatch_dashboard.safetext import verbatim
from stallwatch_exporter.runs.copies import CriRecord, format_record
from stallwatch_exporter.runs.runfolder import RunFolder

SECOND = 1_000_000_000


def write(path: Path, *records: tuple[int, bool, str]) -> Path:
    path.write_bytes(
        b"".join(format_record(CriRecord(t * SECOND, "stdout", f, x.encode())) for t, f, x in records)
    )
    return path


def tail(path: Path, lines: int = 200) -> list[str]:
    return log_copies.tail(path, lines, timezone.utc).splitlines()


def test_log_copies_are_sorted_by_rank(make_run: Callable[..., RunFolder]) -> None:
    folder = make_run("r", lines={10: ["a"], 2: ["b"], None: ["c"]}).path
    assert [copy.rank for copy in log_copies.copies(folder)] == [2, 10, None]
    assert log_copies.copies(folder / "nowhere") == []


def test_last_lines_have_the_time_of_day(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.log", (0, True, "one"), (1, True, "two"), (3661, True, "three"))
    assert tail(path, 2) == ["00:00:01  two", "01:01:01  three"]


def test_last_state_of_a_progress_bar_is_shown(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.log", (0, False, " 1%|\r"), (1, False, " 2%|\r"), (2, True, " 3%|"), (3, False, " 4%")
    )
    assert tail(path) == ["00:00:02   3%|", "       …   4%"]


def test_secrets_and_control_characters_are_removed(tmp_path: Path) -> None:
    token = "hf_" + "a1B2c3D4e5" * 3 + "f6G7"
    path = write(tmp_path / "r.log", (0, True, f"\x1b[31mtoken={token}\x1b[0m\x07"))
    (line,) = tail(path)
    assert token not in line and "\x1b" not in line and "\x07" not in line


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.log"
    line = format_record(CriRecord(SECOND, "stdout", True, b"x" * 1000))
    path.write_bytes(line * 5000 + format_record(CriRecord(2 * SECOND, "stdout", True, b"end")))
    found = tail(path, 100_000)
    assert found[-1] == "00:00:02  end" and len(found) < 300


def test_endless_line_is_truncated(tmp_path: Path) -> None:
    path = write(tmp_path / "r.log", (0, True, "x" * 100_000))
    assert len(tail(path)[0]) < 2100


def test_missing_or_invalid_log_copy_is_empty(tmp_path: Path) -> None:
    assert log_copies.tail(tmp_path / "nowhere.log") == ""
    (tmp_path / "odd.log").write_bytes(b"not a record\n\xff\xfe\n")
    assert log_copies.tail(tmp_path / "odd.log") == ""


def test_text_after_a_terminal_link_is_kept() -> None:
    link = "\x1b]8;;file:///a.py\x1b\\a.py\x1b]8;;\x1b\\"
    assert verbatim(f"{link} said\nsecond line\n\x1b]0;title\x07third") == "a.py said\nsecond line\nthird"
    assert verbatim("\x1b]8;;cut off\nnext") == "\nnext"
