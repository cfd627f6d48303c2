"""``stallwatch samples`` and ``stallwatch.samples``."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import stallwatch
from stallwatch.cli import cli

LOG = """\
[2026-11-20 23:56:32,534] [INFO] [logging.py:96:log_dist] [Rank 0] step=1, skipped=0, lr=[1e-05]
{'loss': 0.5, 'grad_norm': nan, 'epoch': 0.1}
{'eval_loss': 0.75, 'epoch': 0.1}
words
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(LOG * 600)  # too long to be read line by line
    return path


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_is_written_to_standard_output(log: Path) -> None:
    result = CliRunner().invoke(cli, ["samples", str(log)])
    assert result.exit_code == 0
    found = rows(result.stdout)
    assert len(found) == 1800
    assert (found[0]["rank"], found[0]["step"], found[0]["time"]) == ("0", "1", "2026-11-20 23:56:32.534000Z")
    assert (found[1]["loss"], found[1]["grad_norm"], found[1]["learning_rate"]) == ("0.5", "nan", "")
    assert (found[-1]["phase"], found[-1]["eval_loss"], found[-1]["line"]) == ("eval", "0.75", "2399")


def test_output_file_is_csv_or_parquet(log: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("x.csv", "x.parquet"):
        result = CliRunner().invoke(cli, ["samples", str(log), "-o", str(tmp_path / name)])
        assert result.exit_code == 0
        assert "1,800 samples written to" in result.stderr
    assert parquet.read_table(tmp_path / "x.parquet").num_rows == 1800
    assert len(rows((tmp_path / "x.csv").read_text())) == 1800
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.log", "x.csv", "x.parquet"]


def test_problems_are_reported(tmp_path: Path, log: Path) -> None:
    missing = CliRunner().invoke(cli, ["samples", str(tmp_path / "none.log"), str(log)])
    assert missing.exit_code == 2
    assert "no such file" in missing.stderr
    assert len(rows(missing.stdout)) == 1800
    (tmp_path / "words.log").write_text("nothing\n")
    nothing = CliRunner().invoke(cli, ["samples", str(tmp_path / "words.log")])
    assert nothing.exit_code == 1
    assert "no samples" in nothing.stderr


def test_nothing_is_written_if_no_input_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.log").write_bytes(b"\x7fELF" + bytes(2000))
    for name in ("none.log", "binary.log"):
        result = CliRunner().invoke(cli, ["samples", str(tmp_path / name)])
        assert (result.exit_code, result.stdout) == (2, "")
    out = tmp_path / "x.csv"
    assert CliRunner().invoke(cli, ["samples", str(tmp_path / "none.log"), "-o", str(out)]).exit_code == 2
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "words"), [("x.xlsx", ".parquet"), ("no/folder/x.csv", "choose another file with -o")]
)
def test_unwritable_output_is_reported(log: Path, tmp_path: Path, name: str, words: str) -> None:
    from stallwatch.cli import StallwatchGroup

    assert isinstance(cli, StallwatchGroup)
    result = CliRunner().invoke(cli, ["samples", str(log), "-o", str(tmp_path / name)])
    assert result.exit_code == 2
    assert words in result.stderr


def test_count_of_a_single_sample_is_singular(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("{'loss': 0.5, 'epoch': 0.1}\n")
    result = CliRunner().invoke(cli, ["samples", str(tmp_path / "one.log"), "-o", str(tmp_path / "x.csv")])
    assert "1 sample written to " in result.stderr


def test_parquet_without_pyarrow_names_the_missing_package(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = CliRunner().invoke(cli, ["samples", str(log), "-o", str(tmp_path / "x.parquet")])
    assert result.exit_code != 0
    assert "pip install 'stallwatch[samples]'" in result.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_python_function_returns_a_data_frame(log: Path) -> None:
    pytest.importorskip("pandas")
    frame = stallwatch.samples(log)
    assert len(frame) == 1800
    assert frame.step.dropna().unique().tolist() == [1]
    assert frame.time[0].isoformat() == "2026-11-20T23:56:32.534000+00:00"
    with pytest.warns(UserWarning, match="no such file"):
        nothing = stallwatch.samples([log.parent / "none.log"])
    assert nothing.empty
    assert nothing.dtypes.equals(frame.dtypes)
