"""Launchers' line prefixes are removed, and the rank in them is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallwatch_rules.lines.ranks import local_ranks
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line

ReadLines = Callable[..., list[Line]]


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        ("[rank3]: ValueError: no", 3, "ValueError: no"),
        ('[rank3]:   File "train.py", line 3', 3, '  File "train.py", line 3'),
        ("[rank12]:[W807 10:00:00.5 ProcessGroup.cpp:1] x", 12, "[W807 10:00:00.5 ProcessGroup.cpp:1] x"),
        ("[default3]:hello", 3, "hello"),
        ("[default3]:[rank11]: hello", 11, "hello"),
        ("rank3: hello", 3, "hello"),
        ("[3]<stderr>:hello", 3, "hello"),
        ("[1,3]<stdout>:hello", 3, "hello"),
        ("worker-1: [rank5]: hello", 5, "hello"),
        ("worker-1: hello", None, "worker-1: hello"),
        ("[node7@1,3]<stderr>:hello", 3, "hello"),
        ("[stderr]hello", None, "hello"),
        ("[pod/trainer-0/pytorch] [rank3]: hello", 3, "hello"),
        ("(VllmWorker rank=3 pid=99) hello", 3, "hello"),
        ("(PolicyWorker[rank=3] pid=99, ip=10.0.0.2) hello", 3, "hello"),
        ("(head, rank=0, pid=99) hello", None, "hello"),
        ("(task, pid=99) hello", None, "hello"),
        ("(Actor pid=9, ip=10.0.0.2) hello [repeated 7x across cluster]", None, "hello"),
        ("(Actor pid=9) hello\x1b[32m [repeated 2x across cluster] (Ray deduplicates logs by default. Set"
         " RAY_DEDUP_LOGS=0 to disable log deduplication)\x1b[0m", None, "hello"),
        ("trainer_1  | hello", None, "hello"),
        ("trainer-1  | [rank3]: hello", 3, "hello"),
        ("iter_1 | loss 0.5", None, "iter_1 | loss 0.5"),
        ("[RANK 6] hello", 6, "[RANK 6] hello"),
        ("[rank: 6] Received SIGTERM: 15", 6, "[rank: 6] Received SIGTERM: 15"),
        ("2026-11-20 23:56:32,534: rank3[99][MainThread]: INFO: composer: x", 3,
         "2026-11-20 23:56:32,534: rank3[99][MainThread]: INFO: composer: x"),
        ("10.0.0.7: [rank5]: hello", 5, "hello"),
        ("\x1b[36m(WorkerDict pid=4711, ip=10.0.0.2)\x1b[0m hello", None, "hello"),
        ("(EngineCore_DP0 pid=99) hello", None, "hello"),
        ("trainer-1  | hello", None, "hello"),
        ("704.7s\t1439\thello", None, "hello"),
        ("Nov 21 00:37:12 node7 python[4711]: hello", None, "hello"),
        ("rank 1 step 5 loss 0.5", 1, "rank 1 step 5 loss 0.5"),
        ("[E x.cpp:1] [Rank 6] Watchdog", 6, "[E x.cpp:1] [Rank 6] Watchdog"),
        ("[x] [PG ID 0 PG GUID 0(default_pg) Rank 6] y", 6, "[x] [PG ID 0 PG GUID 0(default_pg) Rank 6] y"),
        ("[x] [PG ID 2 PG GUID 9 Rank 1] gone", None, "[x] [PG ID 2 PG GUID 9 Rank 1] gone"),
        ("[INFO] rank: the level of a matrix", None, "[INFO] rank: the level of a matrix"),
        ("ranking: hello", None, "ranking: hello"),
        ("(see pid file) hello", None, "(see pid file) hello"),
        ("12: hello", None, "12: hello"),
        ("\x1b[1mbo\x1b[31mld\x1b[0m", None, "bold"),
        ("\x1b]0;window title\x07hello", None, "hello"),
    ],
)  # fmt: skip
def test_prefixes_are_removed_and_ranks_read(
    read_lines: ReadLines, raw: str, rank: int | None, text: str
) -> None:
    assert [(line.rank, line.text) for line in read_lines(raw.encode())] == [(rank, text)]


def test_srun_labels_are_ranks_when_certain(read_lines: ReadLines) -> None:
    data = "".join(f"{n % 4}: line {n}\n" for n in range(20)) + "srun: error\n10: [rank11]: x\n"
    lines = read_lines(data.encode())
    assert [(line.rank, line.text) for line in lines[11:14]] == [
        (3, "line 11"),
        (0, "line 12"),
        (1, "line 13"),
    ]
    assert [(line.rank, line.text) for line in lines[-2:]] == [(None, "srun: error"), (11, "x")]
    padded = "".join(f"{n % 3:2d}: line\n" for n in range(20)).encode()
    assert [line.rank for line in read_lines(padded)[-3:]] == [2, 0, 1]


def test_numbered_lists_are_not_labels(read_lines: ReadLines) -> None:
    listed = "".join(f"{n}: item\n" for n in range(100)).encode()
    assert {line.rank for line in read_lines(listed)} == {None}
    sparse = "".join(f"{n % 2}: item\nprose\n" for n in range(100)).encode()
    assert {line.rank for line in read_lines(sparse)} == {None}
    late = b"prose\n" * 1000 + b"".join(b"%d: item\n" % (n % 2) for n in range(100))
    assert {line.rank for line in read_lines(late)} == {None}


def test_prefix_has_precedence_over_the_rank_of_the_file(read_lines: ReadLines) -> None:
    lines = read_lines(b"hello\n[rank2]: there\n", rank=7)
    assert [line.rank for line in lines] == [7, 2]


def test_local_ranks_are_mapped_to_global_ranks() -> None:
    """torchrun labels lines by local ranks, and torch by ranks."""
    host = local_ranks({9, 8})
    lines = LineReader("x", 8, local_ranks=host).feed(b"[default1]:a\n[rank8]: b\n[default1]:[rank9]: c\nd\n")
    assert [(line.rank, line.text) for line in lines] == [(9, "a"), (8, "b"), (9, "c"), (8, "d")]


def test_local_ranks_follow_from_the_first_rank() -> None:
    assert local_ranks({10, 11}, 8) == (8, 9, 10, 11)
    assert local_ranks({3}, 0) == local_ranks(set(), 8) == ()


@pytest.mark.parametrize("ranks", [set(), {0, 1}, {1, 2}])
def test_ambiguous_numbers_are_not_local_ranks(ranks: set[int]) -> None:
    assert local_ranks(ranks) == ()
