"""Lines from bytes: the same for every way of cutting the bytes, whatever launcher and encoding made them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.lines.longlines import GOES_ON, HEAD, MAX_LINE, TAIL
from stallwatch_rules.lines.rankpaths import rank_of_path
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line
from stallwatch_rules.text.encodings import looks_binary


def read(data: bytes, rank: int | None = None, time: float | None = None) -> list[Line]:
    reader = LineReader("train.log", rank)
    return reader.feed(data, time) + reader.finish(time)


def texts(data: bytes) -> list[str]:
    return [line.text for line in read(data)]


PIECES = [
    b"\n",
    b"\r",
    b"\r\n",
    b"plain words",
    b"  5%|# | 1/20 [00:01<00:19,  1.00s/it]",
    b"[rank3]: Traceback (most recent call last):",
    b'[default1]:[rank9]:   File "train.py", line 3',
    b"2026-11-21T00:37:12.5Z stdout P half",
    b"2026-11-21T00:37:13.5Z stdout F whole",
    b"2026-11-21T00:37:14.5Z stderr P 50%\r",
    b"[2026-11-20 23:56:32,534] [INFO] [config.py:1] x",
    "训练停止".encode(),
    "训练停止".encode("gbk"),
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1b[36mcolour\x1b[0m",
    b"\0\0",
    b"worker-1: [rank2]: x",
    b" ",
    b"x" * 300,
    b"1: labelled\n0: labelled\n" * 7,
    b'{"log":"half","stream":"stderr","time":"2026-11-20T23:56:32Z"}',
    b'{"log":" of it\\r5%\\n","stream":"stderr","time":"2026-11-20T23:56:33Z"}',
    b"[rank2]:[E1120 23:56:34.0 a.cpp:1] x",
    b"worker-1: [2026-11-20 23:56:32] x\nworker-1: y",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.lists(st.integers(0, 2000), max_size=8))
@settings(max_examples=300, deadline=None)
def test_any_cut_gives_the_same_lines(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = LineReader("train.log")
    lines: list[Line] = []
    for start, end in itertools.pairwise(bounds):
        lines += reader.feed(data[start:end])
    assert lines + reader.finish() == read(data)


@given(st.lists(st.sampled_from(PIECES), max_size=12))
@settings(max_examples=50, deadline=None)
def test_byte_by_byte_gives_the_same_lines(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    reader = LineReader("train.log")
    lines = [line for at in range(len(data)) for line in reader.feed(data[at : at + 1])]
    assert lines + reader.finish() == read(data)


@pytest.mark.parametrize("excess", [-1, 0, 1, 70_000])
@pytest.mark.parametrize("step", [1000, 65_536, 10**9])
def test_a_long_line_is_cut_the_same_way_however_it_comes(excess: int, step: int) -> None:
    data = b"a" * (MAX_LINE + excess) + b"\nnext\n"
    reader = LineReader("train.log")
    lines = [line for at in range(0, len(data), step) for line in reader.feed(data[at : at + step])]
    kept = [MAX_LINE + excess] if excess <= 0 else [HEAD, len(GOES_ON) + TAIL]
    assert [len(line.text) for line in lines] == [*kept, 4]
    assert [line.number for line in lines] == [*[1 for _ in kept], 2]
    assert reader.cut == (1 if excess > 0 else 0)


@pytest.mark.parametrize("step", [100, 65_535, 65_537, 10**9])
def test_the_end_of_a_long_line_is_kept_whatever_stands_before_it(step: int) -> None:
    numbers = " ".join(map(str, range(200_000)))
    data = f"[rank3]: weights {numbers} ValueError: no such thing\nnext\n".encode()
    reader = LineReader("train.log")
    lines = [line for at in range(0, len(data), step) for line in reader.feed(data[at : at + step])]
    assert [(line.text[:12], line.rank) for line in lines[:1]] == [("weights 0 1 ", 3)]
    assert lines[1].text.startswith(GOES_ON)
    assert lines[1].text.endswith(" 199999 ValueError: no such thing")
    assert (lines[1].rank, lines[1].number, len(lines)) == (3, 1, 3)


def test_a_record_that_is_long_in_its_parts_keeps_its_end() -> None:
    part = "2026-11-20T10:00:00.5Z stderr P " + "x" * 16_000 + "\n"
    lines = read((part * 9 + "2026-11-20T10:00:01.5Z stderr F ValueError: no\n").encode())
    assert [len(line.text) for line in lines] == [HEAD, len(GOES_ON) + TAIL]
    assert lines[1].text.endswith("xValueError: no")
    assert {line.number for line in lines} == {1}


def test_a_long_line_that_begins_in_a_portion_of_others_is_cut_too() -> None:
    reader = LineReader("train.log")
    assert len(reader.feed(b"short\n" + b"a" * (MAX_LINE + 5))) == 1
    assert [len(line.text) for line in reader.feed(b"\n")] == [HEAD, len(GOES_ON) + TAIL]
    assert reader.cut == 1


def test_a_gigabyte_line_does_not_grow_in_memory() -> None:
    reader = LineReader("train.log")
    for _ in range(64):
        assert reader.feed(b"x" * 65_536) == []
        assert len(reader._held) <= MAX_LINE + 1
    assert sum(len(line.text) for line in reader.feed(b"\n")) == MAX_LINE + len(GOES_ON)


def test_a_line_cut_inside_a_character_loses_only_that_character() -> None:
    for before in (b"", b"x", b"xx"):
        head, tail = read(before + "停".encode() * MAX_LINE + b"\n")
        assert set(head.text.lstrip("x")) == {"停"}
        assert set(tail.text.removeprefix(GOES_ON)) == {"停"}


def test_a_partial_last_line_is_held_back_until_it_ends() -> None:
    reader = LineReader("train.log")
    assert reader.feed(b"one\ntw") == [Line("one", "train.log", 1)]
    assert reader.feed(b"o") == []
    assert reader.feed(b"\n") == [Line("two", "train.log", 2)]
    assert reader.feed(b"rest") == []
    assert reader.finish() == [Line("rest", "train.log", 3)]
    assert (reader.lines, reader.bytes) == (3, 12)


def test_redrawn_segments_are_lines_of_one_number_and_come_at_once() -> None:
    reader = LineReader("train.log")
    assert [(line.text, line.number) for line in reader.feed(b"1%\r2%\r")] == [("1%", 1), ("2%", 1)]
    assert [(line.text, line.number) for line in reader.feed(b"\n\nend\n")] == [("end", 3)]


def test_text_glued_to_a_progress_bar_is_a_line_of_its_own() -> None:
    bar = "  3%|▎         | 3/100 [00:03<01:37,  1.00s/it]"
    glued = f"{bar}Traceback (most recent call last):\n{bar}[rank1]: ValueError: no\n".encode()
    assert [(line.text, line.rank) for line in read(glued)] == [
        (bar, None),
        ("Traceback (most recent call last):", None),
        (bar, None),
        ("ValueError: no", 1),
    ]


def test_what_two_ranks_wrote_into_one_line_is_parted() -> None:
    data = b'[rank0]:   File "train.py", li[rank1]: ValueError: no\nhello[default2]:there\n'
    found = read(data + b"byeTraceback (most recent call last):\n")
    assert [(line.text, line.rank) for line in found] == [
        ('  File "train.py", li', 0),
        ("ValueError: no", 1),
        ("hello", None),
        ("there", 2),
        ("bye", None),
        ("Traceback (most recent call last):", None),
    ]


def test_a_bar_with_a_postfix_stays_whole() -> None:
    bar = "Epoch 0:  12%|█▏        | 12/100 [00:10<01:00,  1.20it/s, loss=0.5, v_num=0]"
    assert texts(bar.encode()) == [bar]


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
def test_prefixes_are_taken_off_and_ranks_understood(raw: str, rank: int | None, text: str) -> None:
    assert [(line.rank, line.text) for line in read(raw.encode())] == [(rank, text)]


def test_srun_labels_are_ranks_once_they_are_sure() -> None:
    data = "".join(f"{n % 4}: line {n}\n" for n in range(20)) + "srun: error\n10: [rank11]: x\n"
    lines = read(data.encode())
    assert [(line.rank, line.text) for line in lines[11:14]] == [
        (3, "line 11"),
        (0, "line 12"),
        (1, "line 13"),
    ]
    assert [(line.rank, line.text) for line in lines[-2:]] == [(None, "srun: error"), (11, "x")]
    padded = "".join(f"{n % 3:2d}: line\n" for n in range(20)).encode()
    assert [line.rank for line in read(padded)[-3:]] == [2, 0, 1]


def test_numbered_lists_are_no_labels() -> None:
    listed = "".join(f"{n}: item\n" for n in range(100)).encode()
    assert {line.rank for line in read(listed)} == {None}
    sparse = "".join(f"{n % 2}: item\nprose\n" for n in range(100)).encode()
    assert {line.rank for line in read(sparse)} == {None}
    late = b"prose\n" * 1000 + b"".join(b"%d: item\n" % (n % 2) for n in range(100))
    assert {line.rank for line in read(late)} == {None}


def test_the_file_tells_the_rank_and_a_prefix_inside_wins() -> None:
    lines = read(b"hello\n[rank2]: there\n", rank=7)
    assert [line.rank for line in lines] == [7, 2]


NOV_20 = 1795218992.0  # 2026-11-20 23:56:32 UTC


@pytest.mark.parametrize(
    ("raw", "time"),
    [
        ("[2026-11-20 23:56:32,534] [INFO] x", NOV_20 + 0.534),
        ("2026-11-20 23:56:32.123 | INFO | x", NOV_20 + 0.123),
        ("2026-11-20T23:56:32Z x", NOV_20),
        ("2026-11-21T07:56:32+08:00 x", NOV_20),
        ("2026-11-20T18:56:32-0500 x", NOV_20),
        ("[INFO|trainer.py:803] 2026-11-20 23:56:32,534 >> x", NOV_20 + 0.534),
        ("[INFO|2026-11-20 23:56:32] llamafactory.x:157 >> x", NOV_20),
        ("11/20/2026 23:56:32 - INFO - x", NOV_20),
        ("2026-13-40 99:99:99 x", None),
        ("20261120 x", None),
        ("step 5 at 2026-11-20 23:56:32", None),
    ],
)
def test_a_leading_timestamp_gives_the_time_and_stays(raw: str, time: float | None) -> None:
    (line,) = read(raw.encode())
    assert (line.time, line.text) == (pytest.approx(time), raw)


def test_lines_without_a_time_inherit_their_ranks_last_one() -> None:
    data = (
        b"before\n[2026-11-20 23:56:32] a\nb\n[rank1]: c\n[rank1]: [2026-11-20 23:56:40] d\n[rank1]: e\nf\n"
    )
    assert [line.time for line in read(data)] == [None, NOV_20, NOV_20, None, NOV_20 + 8, NOV_20 + 8, NOV_20]


def test_live_lines_have_the_time_of_reading() -> None:
    """A logger's stamp has no time zone, the clock that other lines are measured by has."""
    assert [line.time for line in read(b"x\n[2026-11-20 23:56:32] y\n", time=5.0)] == [5.0, 5.0]


def cri(stream: str, flag: str, text: str, second: int = 32) -> bytes:
    return f"2026-11-20T23:56:{second}.5Z {stream} {flag} {text}\n".encode()


def test_container_records_give_time_and_text() -> None:
    (line,) = read(cri("stderr", "F", "[rank3]: hello"))
    assert line == Line("hello", "train.log", 1, 3, NOV_20 + 0.5, zoned=True)


def test_a_records_own_time_wins_over_the_time_of_reading() -> None:
    assert read(cri("stdout", "F", "x"), time=5.0)[0].time == NOV_20 + 0.5


def test_an_unfinished_record_is_joined_with_the_next_of_its_stream() -> None:
    data = cri("stdout", "P", "hal") + cri("stderr", "F", "err", 33) + cri("stdout", "F", "lo", 34)
    assert [(line.text, line.number, line.time) for line in read(data)] == [
        ("err", 2, NOV_20 + 1.5),
        ("hallo", 1, NOV_20 + 0.5),
    ]


def test_a_line_that_is_no_record_has_nothing_of_the_record_before() -> None:
    data = cri("stdout", "P", "hal") + b"[x] plain\n" + cri("stdout", "F", "lo", 34)
    assert [(line.text, line.time) for line in read(data)] == [("[x] plain", None), ("hallo", NOV_20 + 0.5)]


def test_redrawn_records_are_lines_of_their_own() -> None:
    data = cri("stderr", "P", "1%\r") + cri("stderr", "P", "2%\r", 33) + cri("stderr", "F", "3%", 34)
    assert [(line.text, line.number) for line in read(data)] == [("1%", 1), ("2%", 2), ("3%", 3)]


def test_redraws_inside_one_record_share_its_time() -> None:
    assert [(line.text, line.time) for line in read(cri("stderr", "F", "1%\r2%"))] == [
        ("1%", NOV_20 + 0.5),
        ("2%", NOV_20 + 0.5),
    ]


def test_an_unfinished_record_at_the_end_is_given() -> None:
    assert texts(cri("stdout", "P", "Password: ")) == ["Password: "]


def test_encodings() -> None:
    assert texts("忽略输入\nloss，0.5\n".encode("gbk")) == ["忽略输入", "loss，0.5"]
    assert texts("héllo\nx".encode("utf-16")) == ["héllo", "x"]
    assert texts("héllo\n".encode("utf-16-be").join([b"\xfe\xff", b""])) == ["héllo"]
    assert texts(b"\xef\xbb\xbfhello\n") == ["hello"]
    assert texts(b"good \xf0\x9f bad\xff\n") == ["good � bad�"]
    assert texts(b"a\n") == ["a"]  # shorter than a byte order mark


def test_the_holes_of_a_truncated_file_are_dropped() -> None:
    assert texts(b"\0" * 5000 + b"after\n") == ["after"]


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank0.stdout.log", 0),
        ("logs/rank_3.log", 3),
        ("job_rank-12.err", 12),
        ("attempt_0/3/stderr.log", 3),
        ("x/local_rank1/out.log", 1),
        ("runs/demo/ranks/rank0.log", 0),
        ("all.zip!logs/rank3.log", 3),
        ("out/rank5/lora_rank16.log", 5),
        ("lora_rank8.log", None),
        ("node_rank2.log", None),
        ("crank3.log", None),
        ("3/stderr.log", None),
        ("train.log", None),
        ("", None),
    ],
)
def test_rank_of_path(path: str, rank: int | None) -> None:
    assert rank_of_path(path) == rank


@pytest.mark.parametrize(
    ("head", "binary"),
    [
        (b"plain text\n" * 100, False),
        ("忽略输入".encode("gbk") * 100, False),
        ("text".encode("utf-16"), False),
        (b"", False),
        (b"\0" * 4096, False),  # nothing but the hole of a truncated log
        (b"\0" * 4096 + b"text after a hole\n", False),
        (b"\x1b[31mred\x1b[0m\r 1%\r 2%\n" * 10, False),
        (b"\x7fELF\x02\x01\x01", True),
        (b"\x80\x04\x95pickle", True),
        (b"PK\x03\x04", True),
        (bytes(range(256)) * 16, True),
        (b"a\0b\0c\0" * 100, True),
    ],
)
def test_looks_binary(head: bytes, binary: bool) -> None:
    assert looks_binary(head) is binary


def test_a_bar_that_stands_is_read_once_with_the_time_it_came() -> None:
    reader = LineReader("train.log")
    assert reader.feed(b"\r 29/100", 10.0) == []
    assert [line.text for line in reader.feed(b"\r 30/100", 11.0)] == [" 29/100"]
    assert reader.idle(10.9) == []
    assert reader.idle(11.5) == [Line(" 30/100", "train.log", 1, None, 11.0, zoned=True)]
    assert reader.idle(99.0) == []
    assert [line.text for line in reader.feed(b"\r 31/100\rdone\n", 50.0)] == [" 31/100", "done"]
    assert reader.feed(b"\r 32/100", 51.0) == []
    assert len(reader.idle(60.0)) == 1
    assert [(line.text, line.number) for line in reader.feed(b"Killed\n", 61.0)] == [("Killed", 2)]
    assert reader.finish(70.0) == []


def test_an_unfinished_ordinary_line_waits_for_its_end_and_keeps_its_time() -> None:
    reader = LineReader("train.log")
    reader.feed(b"one\nloading", 10.0)
    assert reader.idle(99.0) == []
    assert [line.text for line in reader.feed(b" done\nste", 99.0)] == ["loading done"]
    assert reader.finish(200.0) == [Line("ste", "train.log", 3, None, 99.0, zoned=True)]
