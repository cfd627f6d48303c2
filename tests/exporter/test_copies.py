"""Log copies by rank: complete, unchanged, and with secrets redacted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallwatch_exporter.runs.copies import MAX_PIECE, Gap, RankCopies
from stallwatch_exporter.runs.replay import merged_records, read_records
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_rules.text.redact import redact


def nothing_secret(text: str) -> str:
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return RunFolder.create("sft", [], home=tmp_path).path


def copies(folder: Path, **more: object) -> RankCopies:
    return RankCopies(folder, nothing_secret, notice=pytest.fail, **more)  # type: ignore[arg-type]


def texts(path: Path) -> list[bytes]:
    return [record.text for record in read_records(path)]


def test_number_of_log_copies_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwatch_exporter.runs.copies.MOST_FILES", 10)
    writer = copies(folder)
    lines = [b"[rank%d]: one\n" % rank for rank in (*range(50), 10**12, 3, 49)]
    writer.write("out", "stdout", b"".join(lines), 1.0)
    writer.flush(1.0)
    assert len(list((folder / "ranks").iterdir())) == 10
    assert len(texts(folder / "ranks" / "rank3.log")) == 2
    assert len(texts(folder / "output.log")) == len(lines) - 11


def test_lines_are_stored_by_their_rank(folder: Path) -> None:
    writer = copies(folder)
    writer.write("out", "stdout", b"hello\n[rank1]: one\n[default0]:zero\n", 1.0)
    writer.flush(1.0)
    assert texts(folder / "ranks" / "rank1.log") == [b"[rank1]: one"]
    assert texts(folder / "ranks" / "rank0.log") == [b"[default0]:zero"]
    assert texts(folder / "output.log") == [b"hello"]
    assert writer.files == {"output.log", "ranks/rank0.log", "ranks/rank1.log"}


def test_source_of_one_rank_keeps_it_unless_a_line_names_another(folder: Path) -> None:
    writer = copies(folder)
    writer.write("rank3.log", "stdout", b"a\n[rank4]: b\n", 1.0, rank=3)
    writer.flush(1.0)
    assert texts(folder / "ranks" / "rank3.log") == [b"a"]
    assert texts(folder / "ranks" / "rank4.log") == [b"[rank4]: b"]


def test_implausible_rank_creates_no_file(folder: Path) -> None:
    writer = copies(folder)
    writer.write("out", "stdout", b"[rank999999]: x\n", 1.0)
    writer.flush(1.0)
    assert writer.files == {"output.log"}


def test_each_state_of_a_progress_bar_is_a_record(folder: Path) -> None:
    writer = copies(folder)
    for second, data in enumerate((b"\r 0%", b"\r 50%", b"\r100%", b"\n")):
        writer.write("err", "stderr", data, float(second))
    writer.flush(9.0)
    records = list(read_records(folder / "output.log"))
    assert [record.text for record in records] == [b"\r", b" 0%\r", b" 50%\r", b"100%"]
    assert [round(record.time_ns / 1e9) for record in records] == [0, 0, 1, 2]
    assert [record.full for record in records] == [False, False, False, True]


def test_unfinished_line_is_written_after_a_second(folder: Path) -> None:
    writer = copies(folder)
    writer.write("out", "stdout", b"[rank2]: saving ...", 10.0)
    writer.flush(10.5)
    assert writer.files == set()
    writer.flush(11.0)
    writer.write("out", "stdout", b" done\n", 12.0)
    writer.flush(12.0)
    records = list(read_records(folder / "ranks" / "rank2.log"))
    assert [(record.full, record.text) for record in records] == [
        (False, b"[rank2]: saving "),
        (True, b"... done"),
    ]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=60,
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stdout", "stderr"]),
            st.lists(
                st.sampled_from(
                    [b"a", b"\n", b"\r", b"\r\n", b"[rank1]: ", b"[rank0]: ", "步".encode(), b"\xff"]
                ),
                max_size=8,
            ).map(b"".join),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_records_combine_to_the_printed_streams(
    tmp_path: Path, portions: list[tuple[str, bytes, bool]]
) -> None:
    home = tmp_path / "home"
    shutil.rmtree(home, ignore_errors=True)
    folder = RunFolder.create("sft", [], home=home).path
    writer = copies(folder)
    for index, (stream, data, flushed) in enumerate(portions):
        writer.write(stream, stream, data, index * 0.7)
        if flushed:
            writer.flush(index * 0.7)
    writer.flush(99.0, everything=True)
    for stream in ("stdout", "stderr"):
        printed = b"".join(data for name, data, _ in portions if name == stream)
        assert b"".join(r.printed for r in merged_records(folder) if r.stream == stream) == printed


def test_secrets_are_not_written_to_disk(folder: Path) -> None:
    writer = RankCopies(folder, lambda text: text.replace("hf_abc", "***"), notice=pytest.fail)
    writer.write("out", "stdout", b"fine \xff\ntoken hf_a", 1.0)
    writer.write("out", "stdout", b"bc\n", 1.1)
    writer.flush(1.1)
    assert texts(folder / "output.log") == [b"fine \xff", b"token ***"]


TOKEN = b"hf_" + b"A1b2" * 9
HALVES = [
    (b"logging in with " + TOKEN[:20], TOKEN[20:] + b" now\n"),
    (b"password: hun", b"ter2abc\n"),
    (b"export API_KEY=", b"abcdef0123456789\n"),
    (b'secret="one two th', b'ree four"\n'),
]


@pytest.mark.parametrize(("before", "after"), HALVES)
def test_secret_split_by_a_flush_is_not_written(folder: Path, before: bytes, after: bytes) -> None:
    writer = RankCopies(folder, redact, notice=pytest.fail)
    writer.write("out", "stdout", before, 1.0)
    writer.flush(3.0)
    writer.write("out", "stdout", after, 4.0)
    writer.flush(4.0)
    kept = b"".join(texts(folder / "output.log"))
    assert b"***" in kept
    assert not any(word in kept for word in (TOKEN[-8:], b"ter2", b"0123456789", b"ree four"))


@pytest.mark.parametrize("filler", [b"x ", b'"k":1,'], ids=["words", "dense"])
def test_secret_at_the_end_of_a_long_piece_is_not_written(folder: Path, filler: bytes) -> None:
    writer = RankCopies(folder, redact, notice=pytest.fail)
    start = filler * ((MAX_PIECE - 10) // len(filler))
    writer.write("out", "stdout", start + TOKEN + b" end of it " * 3 + b"\n", 1.0)
    writer.write("out", "stdout", start + TOKEN, 2.0)
    writer.write("out", "stdout", b" end\n", 2.0)
    writer.flush(4.0)
    kept = b"".join(texts(folder / "output.log"))
    assert kept.count(b"***") == 2 and b"A1b2" not in kept


def test_parts_around_a_gap_are_not_joined(folder: Path) -> None:
    writer = copies(folder)
    writer.write("out", "stdout", b"step 12", 1.0)
    writer.write("out", "stdout", b"7 loss 0.5\n", 2.0, fresh=True)
    writer.write("out", "stdout", b"[rank1]: half of ", 3.0)
    writer.flush(9.0)  # the data are already written
    writer.write("out", "stdout", b"other\n", 10.0, fresh=True)
    writer.flush(10.0)
    assert texts(folder / "output.log") == [b"step 12", b"7 loss 0.5", b"other"]
    records = [(record.full, record.text) for record in read_records(folder / "ranks/rank1.log")]
    assert records == [(False, b"[rank1]: half of "), (True, b"")]


def test_clock_change_does_not_delay_an_unfinished_line(folder: Path) -> None:
    writer = copies(folder)
    writer.write("out", "stdout", b"saving ...", 5000.0)
    writer.flush(1000.0)
    assert texts(folder / "output.log") == [b"saving "]


def test_unwritable_folder_is_reported_once_and_counted(folder: Path) -> None:
    messages: list[str] = []
    (folder / "output.log").mkdir()
    writer = RankCopies(folder, nothing_secret, messages.append)
    for _ in range(3):
        writer.write("out", "stdout", b"x\n", 1.0)
        writer.flush(1.0)
    assert writer.lost == 0  # lines wait for free space
    writer.flush(2.0, everything=True)
    assert writer.lost == 3
    assert len(messages) == 1 and "Is a directory" in messages[0]


def test_size_of_log_copies_is_bounded_except_for_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallwatch_exporter.runs.copies._HELD", 200)
    messages: list[str] = []
    writer = RankCopies(folder, nothing_secret, messages.append, max_bytes=200)
    for number in range(9):
        writer.write("out", "stdout", b"%d" % number * 50 + b"\n", 1.0 + number)
        writer.flush(1.0 + number)
    assert [text[:1] for text in texts(folder / "output.log")] == [b"0", b"1"]
    writer.flush(9.0, everything=True)
    assert [text[:1] for text in texts(folder / "output.log")] == [b"0", b"1", b"7", b"8"]
    (gap,) = writer.gaps
    assert (gap.lines, int(gap.since), int(gap.until)) == (5, 3, 7)
    assert writer.lost == 5 and len(messages) == 1


def test_lines_missing_from_the_output_are_a_gap_of_the_copies(folder: Path) -> None:
    writer = copies(folder)
    writer.write("out", "stdout", b"first\n", 1.0)
    writer.write("out", "stdout", b"last\n", 5.0, fresh=True, lost=30)
    assert writer.gaps == [Gap(30, 1.0, 5.0)]
