"""``stallwatch matches``: every line at which a rule fires."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stallwatch.cli import cli
from stallwatch_logs import log_files

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NOTICE = "Invalidate trace cache @ step 7: expected module 9, but got module 3"


def lines(count: int) -> list[str]:
    found = []
    for step in range(count):
        clock = f"{9 + step // 3600:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
        found.append(f"[2026-05-02 {clock},000] [INFO] step {step} loss 1.5")
        if step % 50 == 20:
            found.append(NOTICE)
    return [*found, f"[rank3]: {OOM} token=hf_abcdefghijklmnopqrstuvwxyz0123"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["matches", *arguments])


@pytest.fixture(params=[100, 9000], ids=["short", "long"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    text = lines(request.param)
    path = tmp_path / "train.log"
    path.write_text("\n".join(text) + "\n")
    return path, text


def test_each_match_is_one_line(log: tuple[Path, list[str]]) -> None:
    path, text = log
    result = run(str(path))
    assert result.exit_code == 0
    expected = [number for number, line in enumerate(text, 1) if line == NOTICE or OOM in line]
    assert [int(line.split(":")[1]) for line in result.stdout.splitlines()] == expected
    assert result.stdout.splitlines()[0].startswith(f"{path}:22: zero3-trace-cache-invalidated: Invalidate")
    assert "hf_abc" not in result.stdout


def test_log_rotated_during_reading_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines(9000)))
    expected = run(str(path)).stdout
    real = log_files.file_chunks

    def rotated(*args: Any) -> Iterator[bytes]:
        path.rename(tmp_path / "train.log.1")
        path.write_text(f"{NOTICE}\n" * 9000)
        return real(*args)

    monkeypatch.setattr(log_files, "file_chunks", rotated)
    assert run(str(path)).stdout == expected
    assert (tmp_path / "train.log.1").exists()


def test_json_contains_time_rank_and_captures(log: tuple[Path, list[str]]) -> None:
    path, text = log
    found = [json.loads(line) for line in run(str(path), "--json").stdout.splitlines()]
    assert found[0]["time"] == "2026-05-02T09:00:20.000Z"
    assert found[0]["captures"]["expected"] == "9"
    last = found[-1]
    assert (last["rule"], last["rank"], last["line"], last["file"]) == (
        "cuda-oom",
        3,
        len(text),
        str(path),
    )


def test_counts_in_stretches_of_time(log: tuple[Path, list[str]]) -> None:
    path, text = log
    counted = [json.loads(line) for line in run(str(path), "--every", "60", "--json").stdout.splitlines()]
    assert sum(item["count"] for item in counted) == sum(line == NOTICE or OOM in line for line in text)
    assert counted[0] == {
        "time": "2026-05-02T09:00:00.000Z",
        "rule": "zero3-trace-cache-invalidated",
        "count": 1,
    }
    assert run(str(path), "--every", "60").stdout.startswith("2026-05-02T09:00:00.000Z       1 zero3-trace")


def test_only_the_rules_asked_for(log: tuple[Path, list[str]]) -> None:
    path, _ = log
    result = run(str(path), "--rule", "cuda-oom")
    assert [line.split(": ")[1] for line in result.stdout.splitlines()] == ["cuda-oom"]
    unknown = run(str(path), "--rule", "no-such-rule")
    assert unknown.exit_code == 2
    assert "no such rule; to list all rules, run stallwatch rules list" in unknown.stderr


def test_exit_code_shows_whether_there_are_matches(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.log"
    quiet.write_text("all is well\n")
    assert run(str(quiet)).exit_code == 1
    assert run(str(quiet), str(tmp_path / "none.log")).exit_code == 2


def test_every_form_of_a_log_gives_the_same(log: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, text = log
    plain = run(str(path)).stdout.replace("train.log", "x")
    packed = tmp_path / "train.log.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert run(str(packed)).stdout.replace("train.log.gz", "x") == plain
    path.write_text("\n".join(text), encoding="utf-16")
    assert run(str(path)).stdout.replace("train.log", "x") == plain


def test_without_hyperscan_the_same_is_found(
    log: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = log
    fast = run(str(path), "--json").stdout
    monkeypatch.setenv("STALLWATCH_MATCHER", "re2")
    assert [json.loads(line)["line"] for line in run(str(path), "--json").stdout.splitlines()] == [
        json.loads(line)["line"] for line in fast.splitlines()
    ]
