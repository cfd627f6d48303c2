"""A dump of torch's flight recorder as the activity of one rank, and all ranks' dumps judged together."""

from __future__ import annotations

from typing import Any

from stallwatch_rules.stacks.dumps import is_dump, read_dump
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.records import StallStacks


def entry(
    number: int, state: str = "completed", operation: str = "all_reduce", line: int = 9, **more: Any
) -> Any:
    frames = [
        {
            "name": operation,
            "filename": "/x/site-packages/torch/distributed/distributed_c10d.py",
            "line": 3245,
        },
        {"name": "step", "filename": "/home/me/train.py", "line": line},
    ]
    return {
        "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number, "state": state,
        "profiling_name": f"nccl:{operation}", "is_p2p": False, "frames": frames,
        "time_created_ns": 10**18 + number, **more,
    }  # fmt: skip


def dump(*entries: Any, ranks: str = "[0, 1, 2, 3]") -> dict[str, Any]:
    """Return a dump as torch 2.13 writes it with NCCL."""
    numbers = [entry["collective_seq_id"] for entry in entries if not entry["is_p2p"]]
    done = [entry["collective_seq_id"] for entry in entries if entry["state"] == "completed"]
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": max(numbers, default=-1),
                "last_started_collective": max(numbers, default=-1),
                "last_completed_collective": max(done, default=-1),
            }
        },
        "entries": list(entries),
    }


def judged(*dumps: dict[str, Any]) -> StallStacks:
    found = [read_dump(item, rank) for rank, item in enumerate(dumps)]
    doing = {item.answer.rank: item.doing for item in found}
    return fold([item.answer for item in found], time=0.0, doing=doing)


WAITS = dump(entry(5), entry(6, "scheduled"))


def test_missing_rank_is_named_with_its_last_location() -> None:
    found = judged(WAITS, WAITS, dump(entry(5, line=4)), WAITS)
    assert found.odd == [2] and found.confidence > 0.9
    assert [(group.kind, group.place) for group in found.groups] == [
        ("collective", "train.py:9 in step"),
        ("unknown", "train.py:4 in step"),
    ]


def test_asynchronous_programs_blame_no_other_rank() -> None:
    """All have joined 6 collectives and completed none, so the count of one program means nothing."""
    ahead = dump(entry(5), entry(6, "scheduled"), entry(7, "scheduled"), entry(8, "scheduled"))
    found = judged(WAITS, ahead, WAITS, ahead)
    assert (found.odd, found.why) == ([], "unfinished")
    assert judged(ahead, ahead, ahead, dump(entry(5))).odd == [3]


def test_rank_with_another_collective_has_diverged() -> None:
    other = dump(entry(5), entry(6, "scheduled", "broadcast"))
    found = judged(WAITS, other, WAITS, WAITS)
    assert (found.odd, found.why) == ([1], "diverged")


def test_pending_transfer_is_waited_for() -> None:
    receives = dump(entry(5), entry(0, "started", "recv 1<-0", is_p2p=True))
    assert read_dump(receives, 0).doing.what == "recv"
    sent = dump(entry(5), entry(0, "completed", "send 0->1", is_p2p=True))
    assert read_dump(sent, 0).doing.kind == "unknown"


def test_other_dictionaries_are_not_dumps() -> None:
    assert not any(map(is_dump, ({}, [], None, {"version": "1"}, {"entries": []})))
    odd = {
        "version": 2, "entries": [None, {"frames": [7, {"line": "x"}], "pg_id": [[]], "process_group": [{}]}],
        "pg_config": {"0": {"ranks": [["x"] * 9]}, 5: {}, "1": None}, "pg_status": [1],
    }  # fmt: skip
    assert read_dump(odd, 3).doing.kind == "unknown"
