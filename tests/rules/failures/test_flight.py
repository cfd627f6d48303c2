"""NCCL's counters in the text of its watchdog."""

from __future__ import annotations

from stallwatch_rules.failures.flight import (
    FlightData,
    first_timed_out_collective,
    flight_note,
    reporting,
    wait_in_unequal_gathers,
)
from stallwatch_rules.locale import render


def timed_out(rank: int, work: int = 900, operation: str = "ALLREDUCE", size: int = 64) -> str:
    return (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work}, "
        f"OpType={operation}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600012 ms"
    )


def counters(rank: int, enqueued: int, completed: int, group: int = 0) -> str:
    return (
        f"[PG ID {group} PG GUID {group} Rank {rank}] Timeout at NCCL work: {completed + 1}, "
        f"last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    )


def read(*lines: str) -> FlightData:
    data = FlightData()
    for line in lines:
        data.see(line, None)
    return data


def test_rank_whose_last_enqueued_collective_is_older_is_the_culprit() -> None:
    data = read(*(counters(rank, 905 if rank != 5 else 899, 898) for rank in range(8)))
    assert "point to rank 5" in render(flight_note(data.ranks))
    assert "899" in render(flight_note(data.ranks))
    assert "指向 rank 5" in render(flight_note(data.ranks), "zh")


def test_two_ranks_with_two_counters_name_no_rank() -> None:
    assert render(flight_note(read(counters(0, 9, 8), counters(1, 7, 6)).ranks)) == ""


def test_different_collectives_mean_different_paths() -> None:
    data = read(timed_out(0, 41, "ALLREDUCE"), timed_out(1, 41, "_ALLGATHER_BASE"))
    assert "different paths" in render(flight_note(data.ranks))


def test_gather_of_different_sizes_is_recognized() -> None:
    data = read(timed_out(0, 41, "_ALLGATHER_BASE", 64), timed_out(1, 41, "_ALLGATHER_BASE", 128))
    assert wait_in_unequal_gathers(data.ranks)
    assert "different numbers of elements" in render(flight_note(data.ranks))
    same = read(timed_out(0, 41, "_ALLGATHER_BASE"), timed_out(1, 41, "_ALLGATHER_BASE"))
    assert not wait_in_unequal_gathers(same.ranks)
    later = read(timed_out(0, 41, "_ALLGATHER_BASE", 64), timed_out(1, 42, "_ALLGATHER_BASE", 128))
    assert not wait_in_unequal_gathers(later.ranks)


def test_early_collective_suggests_a_network_problem() -> None:
    assert "peer-to-peer communication or the network" in render(flight_note(read(timed_out(0, 1)).ranks))
    assert "same collective" in render(flight_note(read(timed_out(0), timed_out(1)).ranks))
    assert render(flight_note(read(timed_out(0)).ranks)) == ""


def test_counters_of_different_groups_are_not_compared() -> None:
    lines = [counters(rank, 905, 898, group=1) for rank in range(4)]
    assert render(flight_note(read(*lines, counters(4, 17, 16, group=2)).ranks)) == ""


def test_rank_is_read_from_the_text_or_its_prefix() -> None:
    data = read(timed_out(3, 12), "no collective here")
    data.see(timed_out(3, 12).replace("[Rank 3] ", ""), 6)
    data.see(timed_out(3, 12).replace("[Rank 3] ", ""), None)
    assert reporting(data.ranks) == {3, 6}
    assert first_timed_out_collective(data.ranks) == 12
    assert first_timed_out_collective({}) is None
