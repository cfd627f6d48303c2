"""Permanent hangs under ``stallwatch run``: the blamed ranks, and the reaction to the stall."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import end_all_with
from watched_ranks import HERE, LATE, RANKS, command_lines

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.running.command import run_command
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stacks.queries import find_py_spy
from stallwatch_rules.endings import Ending, ExitedRank
from stallwatch_rules.locale import render
from stallwatch_rules.messages import has
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.stacks.sentences import sentence

pytestmark = [
    pytest.mark.repro,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]


class Outcome:
    """Incidents of a run, and its end."""

    def __init__(self) -> None:
        self.sent: list[Incident] = []
        self.notices: list[str] = []
        self.ends: list[tuple[Diagnosis, Ending]] = []
        self.code: int | None = None

    def checked(self, odd: list[int], says: str) -> None:
        """Check that the stall opened in time, and that it names the right ranks."""
        stalls = [item for item in self.sent if item.kind == "stall"]
        first = stalls[0]
        assert first.stalled_seconds is not None and first.threshold_seconds is not None
        assert first.stalled_seconds <= first.threshold_seconds + LATE
        stacks = stalls[-1].stacks
        assert stacks is not None and stacks.odd == odd, stacks
        assert re.fullmatch(says, render(sentence(stacks))), render(sentence(stacks))


Watched = Callable[..., Outcome]


@pytest.fixture
def watched(tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Yield a function that runs a program's ranks under watch; they end with the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("STARTED_BY_TEST", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))

    def start(
        program: str,
        *arguments: str,
        ranks: int = RANKS,
        **more: object,
    ) -> Outcome:
        outcome = Outcome()
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        settings = {"home": tmp_path / "home", "port": 0, "stall_floor_seconds": 2.0, **more}
        outcome.code = run_command(
            [*launch, str(HERE / program), *arguments],
            ExporterSettings(**settings),  # type: ignore[arg-type]
            [outcome.sent.append],
            catalogue,
            notice=outcome.notices.append,
            on_end=lambda diagnosis, ending, _: outcome.ends.append((diagnosis, ending)),
        )
        return outcome

    yield start
    end_all_with("STARTED_BY_TEST", str(tmp_path))


@pytest.mark.usefixtures("patient")
def test_rank_that_skipped_a_collective_is_named_and_the_run_aborted(watched: Watched) -> None:
    outcome = watched("lost_ranks.py", "skip", on_stall="abort")
    outcome.checked(
        [1],
        r"Ranks 0, 2 wait in all_reduce \(lost_ranks\.py:\d+ in balance, \d+ collectives joined\); "
        r"rank 1 waits in barrier \(lost_ranks\.py:\d+ in balance, \d+ collectives joined\)\.",
    )
    assert (outcome.sent[-1].status, outcome.sent[-1].outcome) == ("resolved", "ended")
    diagnosis, ending = outcome.ends[0]
    assert ending.kind == "killed" and has(ending.detail, "run.aborted")
    assert "on_stall = abort" in render(ending.detail, "zh")
    assert outcome.code != 0
    assert any(render(line).startswith("Ranks 0, 2 wait in all_reduce") for line in diagnosis.digest)
    assert not [words for words in command_lines(psutil.Process()) if "lost_ranks.py" in " ".join(words)]


def test_rank_that_ended_early_is_named(watched: Watched, tmp_path: Path) -> None:
    line = f"cat > {tmp_path}/incident.json; env > {tmp_path}/environ; kill $STALLWATCH_COMMAND_PID"
    outcome = watched("lost_ranks.py", "leave", ranks=2, on_stall=f"command {line}")
    outcome.checked([1], r"Rank 0 is at lost_ranks\.py:\d+ in collect.*; rank 1 has ended.*\.")
    incident = json.loads((tmp_path / "incident.json").read_text())
    assert (incident["rule"], incident["rank"]) == ("rank-left-early", 1)
    assert incident["note"] == "Rank 1 exited without an error at step 40, and the other ranks waited."
    diagnosis, ending = outcome.ends[0]
    assert diagnosis.primary is not None and diagnosis.primary.rule == "rank-left-early"
    assert ending.left == [ExitedRank(1, 40)]
    assert incident["kind"] == "stall" and incident["stacks"]["odd"] == [1]
    output = dict(
        line.split("=", 1) for line in (tmp_path / "environ").read_text().splitlines() if "=" in line
    )
    assert output["STALLWATCH_RANKS"] == "1" and output["STALLWATCH_RUN"] == incident["run"]
    assert Path(output["STALLWATCH_STACKS"]).read_text().count("=== rank") == 2
    assert outcome.code not in (0, None)


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_ranks_without_a_probe_are_read_by_py_spy(watched: Watched) -> None:
    """Without torch's counters, it is unknown which of two ranks diverged, so both are named."""
    outcome = watched("lost_ranks.py", "skip", ranks=2, probe=False, on_stall="abort")
    outcome.checked(
        [0, 1],
        r"Rank 0 waits in all_reduce \(lost_ranks\.py:\d+ in balance\); "
        r"rank 1 waits in barrier \(lost_ranks\.py:\d+ in balance\)\.",
    )


@pytest.mark.usefixtures("patient")
def test_deepspeed_rank_in_an_endless_reward_function_is_named(watched: Watched) -> None:
    """The other rank waits for a part of the model that ZeRO-3 keeps on this rank."""
    outcome = watched("stuck_deepspeed.py", ranks=2, on_stall="abort")
    outcome.checked(
        [1],
        r"Rank 0 waits in all_gather \(tiny\.py:\d+ in Net\.\w+, \d+ collectives joined\); "
        r"rank 1 is at stuck_deepspeed\.py:\d+ in reward \(\d+ collectives joined\)\.",
    )
