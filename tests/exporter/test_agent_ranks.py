"""A rank that is lost while others continue is reported before the stall that follows; other ends are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentcases import HANG, OOM

from stallwatch_exporter.postmortem.recorded import recorded
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.runs.runfolder import read_info
from stallwatch_exporter.watching.alarms import ENDING_SECONDS
from stallwatch_exporter.watching.lost_ranks import GONE_SECONDS
from stallwatch_rules.endings import GONE_ON, Ending, ExitedRank
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.reading import RunReading

GONE, EARLY = "finding/rank-gone", "finding/rank-left-early"


BEGIN = 1_795_000_000.0


class Ranks:
    """Rings of ranks that the test starts and ends."""

    lost = 0

    def __init__(self, run: Any) -> None:
        self._run = run
        self._up: dict[int, frozenset[Path]] = {}
        self._events: list[dict[str, Any]] = []
        self._count = 0
        self.codes: dict[int, int] = {}
        self.first: int | None = None  #: the rank whose local rank is 0
        run.agent._probing = self

    def start(self, *ranks: int) -> None:
        """Start new processes for the ranks."""
        for rank in ranks:
            self._count += 1
            self._up[rank] = frozenset({Path(f"{self._count}.ring")})
        self._run.wait(1)

    def kill(self, *ranks: int) -> None:
        self._up |= dict.fromkeys(ranks, frozenset())

    def leave(self, *ranks: int, error: bool = False) -> None:
        """Let the ranks record that they leave, and end their processes."""
        self._events += [
            {"kind": "left", "rank": rank, "time": self._run.now, "error": error} for rank in ranks
        ]
        self.kill(*ranks)

    def events(self) -> Iterator[dict[str, Any]]:
        found, self._events = self._events, []
        yield from found

    def read(self) -> list[Any]:
        return []

    def ranks_up(self) -> dict[int, frozenset[Path]]:
        return dict(self._up)

    def exit_codes(self) -> dict[int, int]:
        return {rank: code for rank, code in self.codes.items() if not self._up[rank]}

    def first_rank(self) -> int | None:
        return self.first

    def just_left(self) -> bool:
        return False

    def close(self) -> None:
        pass


def tell_steps(run: Any, steps: dict[int, int], at: float | None = None) -> None:
    for rank, step in steps.items():
        run.agent._intake.record(Record(rank, 1, at or run.now, {"step": float(step)}), None)


@pytest.fixture
def ranks(run: Any) -> Ranks:
    ranks = Ranks(run)
    ranks.start(0, 1, 2)
    return ranks


def test_killed_rank_is_reported_once_and_before_the_stall(run: Any, ranks: Ranks) -> None:
    run.steps(1, 10)
    ranks.kill(1)
    run.wait(GONE_SECONDS)
    assert run.changes == []
    run.wait(2)
    assert run.changes == [(GONE + "/1", "open", "")]
    (found,) = run.sent
    assert (found.severity, found.rank, found.harm, found.total_steps) == ("critical", 1, "fatal", 1000)
    assert (
        render(found.note) == "The process of rank 1 is gone, and the other ranks continue without this rank."
    )
    ranks.kill(2)
    run.wait(100)
    assert {
        render(each.note) for each in run.kept_incidents if each.rule == "rank-gone" and each.count == 2
    } == {"The processes of ranks 1, 2 are gone, and the other ranks continue without these ranks."}
    assert (run.sent[-1].rule, run.sent[-1].stalled_seconds is not None) == ("silent-hang-no-error", True)
    run.end("failed", 1)
    assert run.changes == [(GONE + "/1", "open", ""), (GONE + "/1", "resolved", "run-failed")]
    assert [event.rule for event in run.sent[-1].history if event.what == "opened"] == [
        "rank-gone",
        "silent-hang-no-error",
    ]


KILLED = "torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 7)"


def test_crash_is_one_message_although_the_launcher_ends_other_ranks(run: Any, ranks: Ranks) -> None:
    """A killed rank reports nothing. The other ranks get a signal, and end after a delay."""
    run.steps(1, 10)
    ranks.kill(1)
    run.wait(2)
    run.say(KILLED)
    run.wait(6)
    ranks.kill(0)
    run.wait(9)
    ranks.kill(2)
    run.wait(4)
    assert run.sent == []
    run.end()
    assert run.changes == [("ended/host-oom-sigkill/1", "resolved", "run-failed")]


def test_fatal_line_is_reported_soon_if_other_ranks_continue(run: Any, ranks: Ranks) -> None:
    run.steps(1, 10)
    ranks.kill(1)
    run.wait(1)
    run.say(KILLED)
    run.wait(ENDING_SECONDS)
    assert run.changes == [("finding/host-oom-sigkill/1", "open", "")]


def test_fatal_line_is_reported_while_ranks_restart(run: Any, ranks: Ranks) -> None:
    run.steps(1, 10)
    ranks.kill(1)
    run.wait(1)
    run.say(KILLED)
    for _ in range(8):
        ranks.start(1)
        run.wait(3)
        ranks.kill(1)
        run.wait(1)
    opened = {
        kept_incident.rule: kept_incident.opened_at - BEGIN - 41
        for kept_incident in run.kept_incidents
        if kept_incident.kind == "finding"
    }
    assert opened == {"host-oom-sigkill": pytest.approx(30, abs=2)}


def test_successful_end_of_ranks_is_not_reported(run: Any, ranks: Ranks) -> None:
    ranks.codes[2] = 0
    run.steps(1, 10)
    ranks.leave(1)
    ranks.kill(2)
    run.say(*OOM)
    run.wait(4)
    assert run.changes == [("finding/cuda-oom/1", "open", "")]


def test_kill_counted_by_the_kernel_is_reported_with_the_rank(run: Any, ranks: Ranks) -> None:
    run.agent.memory.counted = lambda: True
    run.steps(1, 10)
    ranks.kill(1)
    run.wait(GONE_SECONDS + 2)
    assert render(run.sent[0].note).endswith(
        "count of out-of-memory kills has risen since the command started."
    )


@pytest.mark.parametrize(
    ("code", "expected", "chinese"),
    [
        (7, "The exit code was 7.", "退出码 7。"),
        (-9, "The termination signal was SIGKILL.", "被 SIGKILL 终止。"),
        (0, "", ""),
    ],
)
def test_observed_exit_of_a_rank_is_reported(
    run: Any, ranks: Ranks, code: int, expected: str, chinese: str
) -> None:
    ranks.codes[1] = code
    run.steps(1, 10)
    ranks.kill(1)
    run.wait(GONE_SECONDS + 2)
    said = "The process of rank 1 is gone, and the other ranks continue without this rank."
    assert render(run.sent[0].note) == f"{said} {expected}".rstrip()
    assert render(run.sent[0].note, "zh").endswith(chinese or "仍在运行。")


def test_rank_with_an_unknown_exit_code_did_not_succeed(run: Any, ranks: Ranks) -> None:
    """After ``raise SystemExit(7)``, the interpreter ends as after a success."""
    tell_steps(run, dict.fromkeys(range(3), 5))
    run.steps(1, 5)
    ranks.codes[1] = 7
    ranks.leave(1)
    run.wait(30)
    assert run.changes == []  # an error that the rank printed would be reported first
    run.wait(20)
    assert run.changes[0] == (GONE + "/1", "open", "")
    assert render(run.sent[0].note).endswith("continue without this rank. The exit code was 7.")
    assert run.agent.judged(Ending("failed", 7)).left == []


def test_second_end_of_a_rank_is_a_new_episode(run: Any, ranks: Ranks) -> None:
    run.steps(1, 5)
    ranks.kill(1)
    run.steps(6, 15)
    ranks.start(1)
    run.steps(16, 20)
    ranks.kill(1)
    run.steps(21, 30)
    episodes = [("/1", "open", ""), ("/1", "resolved", "recovered"), ("/2", "open", "")]
    assert run.changes == [(GONE + number, *change) for number, *change in episodes]
    run.end("finished", 0)
    assert run.changes[-1] == (GONE + "/2", "resolved", "run-finished")


def test_findings_of_the_log_do_not_close_a_lost_rank(run: Any, ranks: Ranks) -> None:
    """The log contains nothing about the lost rank, which would make a finding harmless."""
    ranks.kill(1)
    run.steps(1, 60)
    assert run.changes == [(GONE + "/1", "open", "")]


def test_lost_rank_is_reported_before_the_first_step(run: Any, ranks: Ranks) -> None:
    """A stall of the start is reported only after a long time."""
    ranks.kill(2)
    run.wait(20)
    assert run.changes == [(GONE + "/1", "open", "")]


def test_end_of_all_ranks_is_not_reported(run: Any, ranks: Ranks) -> None:
    run.steps(1, 10)
    for rank in (2, 1, 0):
        ranks.leave(rank)
        run.wait(6)
    run.wait(5)
    run.end("finished", 0)
    assert run.changes == []


@pytest.mark.parametrize("way", ["leave", "kill"])
def test_last_rank_can_take_long_to_save(run: Any, ranks: Ranks, way: str) -> None:
    run.steps(1, 10, total=10)
    getattr(ranks, way)(1, 2)
    run.wait(120)
    run.end("finished", 0)
    assert run.changes == []


@pytest.mark.parametrize(("total", "expected"), [(1000, [(EARLY + "/1", "open", "")]), (None, [])])
def test_rank_that_exits_early_without_error_is_reported(
    run: Any, ranks: Ranks, total: int | None, expected: list[tuple[str, str, str]]
) -> None:
    tell_steps(run, dict.fromkeys(range(3), 5))
    if total is None:
        for step in range(1, 6):
            run.wait(2)
            run.say(f"{{'loss': 0.5, 'step': {step}}}")
    else:
        run.steps(1, 5, total=total)
    ranks.leave(1)
    run.wait(25)
    assert run.changes == expected
    if expected:
        assert (run.sent[0].severity, run.sent[0].rank, run.sent[0].step) == ("warning", 1, 5)
        assert render(run.sent[0].note).startswith("Rank 1 ended without an error at step 5 of 1000,")


def test_missing_rank_is_reported_live_and_at_the_end(run: Any, ranks: Ranks) -> None:
    """The total of steps is unknown, but the progress of the other ranks is enough."""
    tell_steps(run, {0: 20, 1: 5, 2: 5})  # each rank may count in its own unit
    ranks.leave(1)
    for more in range(1, GONE_ON):
        run.wait(20)
        tell_steps(run, {0: 20 + more, 2: 5 + more})
    run.wait(20)
    assert run.changes == []
    tell_steps(run, {0: 20 + GONE_ON, 2: 5 + GONE_ON})
    run.wait(2)
    assert run.changes == [(EARLY + "/1", "open", "")]
    note = "Rank 1 ended without an error at step 5, and the other ranks continue without this rank."
    assert (run.sent[0].severity, run.sent[0].rank, render(run.sent[0].note)) == ("warning", 1, note)
    assert render(run.sent[0].note, "zh") == "rank 1 在第 5 步退出，没有报错；其余 rank 仍在运行。"
    ranks.leave(0, 2)
    ending = run.agent.judged(Ending("finished", 0))
    assert ending.left == [ExitedRank(1, 5, GONE_ON)]
    found = run.agent.end(ending, run.now)
    assert (found.verdict, found.primary.rule, found.primary.rank) == ("degraded", "rank-left-early", 1)
    assert render(found.findings[0].note).startswith(
        "Rank 1 exited without an error at step 5. The other ranks ran 5 more"
    )
    assert run.changes[1:] == [(EARLY + "/1", "resolved", "run-finished")]
    kept = recorded([run.folder.path])
    assert kept.ending is not None
    again = rendered(RunReading(run.catalogue).diagnose(kept.ending))
    assert again.primary is not None and again.primary.rule == "rank-left-early"


def test_local_rank_numbers_in_lines_are_mapped_to_global_ranks(run: Any) -> None:
    ranks = Ranks(run)
    ranks.start(8, 9)
    run.say(*(line.replace("[rank3]: ", "[default1]:") for line in OOM))
    ranks.kill(9)
    ranks.leave(8)
    found = run.agent.end(run.agent.judged(Ending("failed", 1)), run.now)
    assert next(finding.ranks for finding in found.findings if finding.rule == "cuda-oom") == [9]
    info = read_info(run.folder.path)
    assert info is not None and info.ranks == "8-9"  # the ranks are kept after they have ended


def test_lines_of_an_unprobed_rank_are_not_attributed_to_another(run: Any) -> None:
    ranks = Ranks(run)
    ranks.first = 8
    ranks.start(9)
    run.say(*(line.replace("[rank3]: ", "[default0]:") for line in OOM))
    found = run.agent.end(run.agent.judged(Ending("failed", 1)), run.now)
    assert next(finding.ranks for finding in found.findings if finding.rule == "cuda-oom") == [8]
    info = read_info(run.folder.path)
    assert info is not None and (info.ranks, info.first_rank) == ("9", 8)


def test_ranks_with_different_counters_end_as_one_run(run: Any, ranks: Ranks) -> None:
    """One rank counts epochs, the others steps; steps from before it left are not steps without it."""
    tell_steps(run, {0: 10, 1: 900, 2: 900})
    ranks.leave(0)
    left_at = run.now
    run.wait(1)
    tell_steps(run, {1: 1000, 2: 1000}, at=left_at)  # read later than the record that the rank leaves
    run.wait(20)
    ranks.leave(1, 2)
    ending = run.agent.judged(Ending("finished", 0))
    assert ending.left == [] and run.agent.end(ending, run.now).findings == []
    assert run.changes == []


def test_rank_that_ends_during_a_stall_is_not_a_second_incident(run: Any, ranks: Ranks) -> None:
    run.steps(1, 10)
    run.wait(40)
    ranks.kill(1)
    run.wait(60)
    assert run.changes == [(HANG + "/1", "open", "")]
    run.steps(11, 12)
    assert run.changes[1:] == [(HANG + "/1", "resolved", "recovered"), (GONE + "/1", "open", "")]


@pytest.mark.parametrize("way", ["leave", "kill"])
def test_printed_error_of_a_rank_is_the_only_incident(run: Any, ranks: Ranks, way: str) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    if way == "leave":
        ranks.leave(2, error=True)
    else:
        ranks.kill(2)
    run.wait(25)
    assert run.changes == [("finding/cuda-oom/1", "open", "")]


def test_elastic_restart_continues_without_the_lost_rank(run: Any, ranks: Ranks) -> None:
    run.steps(1, 10)
    ranks.kill(2)
    run.wait(3)
    ranks.kill(0, 1)
    run.wait(5)
    ranks.start(0, 1)
    run.steps(1, 15)
    assert run.changes == []


def test_program_before_the_training_is_not_a_rank(run: Any) -> None:
    """The program prepares data under the rank number of a rank that trains on another host."""
    ranks = Ranks(run)
    ranks.start(1)
    ranks.kill(1)
    ranks.start(8, 9)
    run.steps(1, 20)
    assert run.changes == []
