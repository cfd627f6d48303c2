"""Every recording gets the expected diagnosis, as a folder of ranks and as one interleaved file."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.runs.replay import merged_records, recorded_files
from stallwatch_rules.locale import rendered
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.report.json import schema_1_verdict

RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"
NAMES = sorted(path.parent.name for path in RECORDINGS.glob("*/meta.json"))


def meta(name: str) -> dict[str, Any]:
    return json.loads((RECORDINGS / name / "meta.json").read_text())


def interleaved(folder: Path) -> bytes:
    """Return the output of one terminal: by time if recorded, otherwise random, with rank prefixes."""
    if (folder / "agent.json").exists():
        return b"".join(record.printed for record in merged_records(folder))
    streams = [
        [f"[default{log.parent.name}]:{line}" for line in log.read_text().splitlines(keepends=True)]
        for log in sorted(folder.glob("attempt_0/*/std*.log"))
    ]
    dealer = random.Random(folder.name)
    lines = []
    while streams:
        stream = dealer.choice(streams)
        lines += [stream.pop(0) for _ in range(min(len(stream), dealer.randint(1, 5)))]
        streams = [stream for stream in streams if stream]
    launcher = folder / "launcher.log"
    return ("".join(lines) + (launcher.read_text() if launcher.exists() else "")).encode()


def check(name: str, paths: list[Path], *, lines: bool = False) -> None:
    expected = meta(name)["expected"]
    if lines and "lines" in expected:
        expected = {"verdict": expected["verdict"], "primary": expected["lines"]}
    diagnosis, problems = rendered(diagnose_paths(paths, Options(load_catalogue())))
    assert not problems
    assert schema_1_verdict(diagnosis) == expected["verdict"]
    assert (diagnosis.primary and diagnosis.primary.rule) == expected["primary"]
    if "rank" in expected:
        assert diagnosis.primary and diagnosis.primary.rank == expected["rank"]


def test_all_recordings_exist() -> None:
    from scenarios import SCENARIOS

    assert sorted(scenario.name for scenario in SCENARIOS) == NAMES
    for scenario in SCENARIOS:
        written = meta(scenario.name)
        assert written["expected"] == scenario.expected
        assert written["exit_code"] == scenario.exit_code


@pytest.mark.parametrize("name", NAMES)
def test_recorded_folder_is_diagnosed(name: str) -> None:
    check(name, [RECORDINGS / name])


@pytest.mark.parametrize("name", NAMES)
def test_interleaved_recording_gives_the_same_diagnosis(name: str, tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_bytes(interleaved(RECORDINGS / name))
    check(name, [file], lines=True)


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_small_and_do_not_name_the_machine(name: str) -> None:
    files = [path for path in (RECORDINGS / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    for path in files:
        text = path.read_text()
        for word in ("/home/", "/root", "/tmp/", "/Users/"):
            assert word not in text, f"{path}: {word}"


def test_recorded_stall_has_all_three_phases() -> None:
    """The demo promises healthy steps, more and more invalidations, then a silence that a timeout ends."""
    folder = RECORDINGS / "zero3-stall"
    assert {path.name for path in recorded_files(folder)} == {"rank0.log", "rank1.log", "output.log"}
    records = list(merged_records(folder))
    by_step: list[int] = [0]
    for record in records:
        by_step[-1] += b"Invalidate trace cache @ step" in record.text
        if b"rank 0 step " in record.text:
            by_step.append(0)
    third = len(by_step) // 3
    healthy, more, most = sum(by_step[:third]), sum(by_step[third : 2 * third]), sum(by_step[2 * third :])
    assert healthy == 0
    assert 10 < more < most
    silence = max(b.time_ns - a.time_ns for a, b in itertools.pairwise(records)) / 1e9
    assert silence > 80
    assert any(b"rank 1 step" in record.text for record in records)
    assert any(b"Timed out waiting 90000ms" in record.text for record in records)
