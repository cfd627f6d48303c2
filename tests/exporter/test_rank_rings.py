"""Detection of the ranks: programs that load torch under a rank's number do not count."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from optimizer import OPTIMIZER

from stallwatch_exporter.rings.probing import Probing, with_probe
from stallwatch_exporter.watching.lost_ranks import GONE_SECONDS, RankExits
from stallwatch_rules.endings import ExitedRank

PROGRAM = """
import subprocess, sys
import torch
from torch.optim.optimizer import Optimizer
optimizer = Optimizer()
child = None
print("up", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "step":
        optimizer.step()
    elif word == "child":  # as a data loader or a compiler starts its workers
        code = "import torch; print(1, flush=True); input()"
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        child.stdout.readline()
    elif word == "child ends":
        child.communicate("\\n")
    elif word == "exit":
        break
    else:
        exec(word)
    print("done", flush=True)
"""


class Ranks:
    """Ranks that follow orders, and their state as an agent sees it."""

    def __init__(self, tmp_path: Path) -> None:
        self.rings = tmp_path / "rings"
        self.rings.mkdir()
        optim = tmp_path / "site" / "torch" / "optim"
        optim.mkdir(parents=True)
        (optim.parent / "__init__.py").write_text("from torch.optim import optimizer\nimport torch.later\n")
        (optim.parent / "later.py").write_text("")
        (optim / "__init__.py").write_text("")
        (optim / "optimizer.py").write_text(OPTIMIZER)
        (tmp_path / "train.py").write_text(PROGRAM)
        self.folder = tmp_path
        self.probing = Probing(self.rings)
        self.exits = RankExits()
        self.up: dict[int, subprocess.Popen[str]] = {}
        self.there: dict[int, bool] = {}

    def start(self, rank: int) -> None:
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder / "site"), "RANK": str(rank)}
        self.up[rank] = subprocess.Popen(
            [sys.executable, str(self.folder / "train.py")],
            env=with_probe(environ, self.rings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer(rank)

    def tell(self, rank: int, *words: str) -> None:
        for word in words:
            stdin = self.up[rank].stdin
            assert stdin is not None
            print(word, file=stdin, flush=True)
            if word != "exit":
                self._answer(rank)
        if "exit" in words:
            self.up[rank].wait(60)

    def kill(self, rank: int) -> None:
        self.up[rank].kill()
        self.up[rank].wait(60)

    def look(self, now: float = 0.0) -> list[ExitedRank]:
        for event in list(self.probing.events()):
            if event["kind"] == "left":
                self.exits.take(event)
        for record in self.probing.read():
            self.exits.record(record)
        up = self.probing.ranks_up()
        self.there = {rank: bool(rings) for rank, rings in up.items()}
        self.exits.look(up, now)
        return self.exits.left

    @property
    def missed(self) -> dict[int, float]:
        return {item.rank: item.since for item in self.exits.gone}

    def close(self) -> None:
        for process in self.up.values():
            process.kill()
            process.communicate()
        self.probing.close()

    def _answer(self, rank: int) -> None:
        stdout = self.up[rank].stdout
        assert stdout is not None and stdout.readline()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path)
    try:
        ranks.start(0)
        ranks.start(1)
        yield ranks
    finally:
        ranks.close()


@pytest.mark.parametrize("before", [(), ("step", "step")])
@pytest.mark.parametrize("seen", [True, False])
def test_end_of_a_child_is_not_the_end_of_the_rank(ranks: Ranks, before: tuple[str, ...], seen: bool) -> None:
    """The agent checks while the child runs, or only later."""
    ranks.tell(0, *before, "child")
    if seen:
        assert ranks.look() == []
        assert ranks.there == {0: True, 1: True}
    ranks.tell(0, "child ends")
    assert ranks.look() == []
    assert ranks.there == {0: True, 1: True}
    if before:
        ranks.tell(0, "exit")
        assert ranks.look() == [ExitedRank(0, 2)]
        assert ranks.there == {0: False, 1: True}


def test_rank_is_lost_although_its_child_is_running(ranks: Ranks) -> None:
    ranks.tell(0, "step", "child")
    ranks.look()
    ranks.kill(0)
    assert ranks.look() == []
    assert ranks.there == {0: False, 1: True}


@pytest.mark.parametrize("before", [(), ("step", "step")])
def test_restarted_rank_is_present(ranks: Ranks, before: tuple[str, ...]) -> None:
    ranks.tell(0, *before)
    ranks.look()
    ranks.kill(0)
    ranks.look()
    assert ranks.there == {0: False, 1: True}
    ranks.start(0)
    ranks.look()
    assert ranks.there == {0: True, 1: True}
    ranks.tell(0, "exit")
    assert [item.rank for item in ranks.look()] == [0]
    assert ranks.there == {0: False, 1: True}


def test_killed_rank_is_missing_until_its_restart(ranks: Ranks) -> None:
    ranks.tell(0, "step", "child")
    ranks.tell(1, "step")
    ranks.look(0.0)
    ranks.tell(0, "child ends")
    ranks.look(1.0)
    ranks.kill(1)
    ranks.look(2.0)
    ranks.look(1.0 + GONE_SECONDS)
    assert ranks.missed == {}
    ranks.look(2.0 + GONE_SECONDS)
    assert ranks.missed == {1: 2.0}
    ranks.start(1)
    ranks.look(3.0 + GONE_SECONDS)
    assert ranks.missed == {}


def test_launcher_with_a_rank_variable_is_not_a_rank(ranks: Ranks) -> None:
    """The launcher waits for other hosts after its ranks have ended.

    Here the launcher is rank 1, and rank 8 is its only rank.
    """
    ranks.kill(0)
    ranks.start(8)
    ranks.tell(8, "step")
    ranks.look(0.0)
    ranks.kill(8)
    ranks.look(1.0)
    ranks.look(1.0 + GONE_SECONDS)
    assert ranks.there == {0: False, 1: True, 8: False}
    assert ranks.missed == {}
