"""The scan finds the same matches as reading every line, with numbers, captures and times."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from stallwatch_rules.lines.line_prefix import certain_prefix
from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.matching.literal_index import is_matchable, literal_index
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import scanned_patterns
from stallwatch_rules.pages.patterns import hyperscan
from stallwatch_rules.scan.matches import CHUNK, Match, MatchPatterns, MatchScan

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TRACE = "Invalidate trace cache @ step {step}: expected module 7, but got module 3"


pytestmark = pytest.mark.skipif(hyperscan is None, reason="hyperscan has no wheel for this platform")


@pytest.fixture
def log() -> str:
    lines = []
    for step in range(2000):
        lines.append(f"[2026-05-02 09:{step // 60 % 60:02d}:{step % 60:02d},000] step {step}/9000 loss 1.5")
        if step % 37 == 0:
            lines.append(f"\x1b[31m[rank1]: {TRACE.format(step=step)}\x1b[0m")
        if step % 501 == 0:
            lines.append(f"  1%|#    | {step}/9000 [00:10<10:00,  1.0it/s]\r[rank0]: {OOM}\r")
    lines.append("[2026-05-02 10:00:00,000] 显存 " + OOM)
    return "\r\n".join(lines)


def scanned(matcher: Matcher, log: bytes, portion: int) -> tuple[list[Match], int]:
    scan = MatchScan(MatchPatterns(matcher), "train.log")
    found = [item for at in range(0, len(log), portion) for item in scan.feed(log[at : at + portion])]
    return [*found, *scan.finish()], scan.lines


@pytest.mark.parametrize("portion", [1 << 20, 1009, 7])
@pytest.mark.parametrize("encoding", ["gbk", "utf-8"])
def test_scan_equals_reading_every_line(matcher: Matcher, log: str, portion: int, encoding: str) -> None:
    data = log.encode(encoding)
    found, lines = scanned(matcher, data, portion)
    read = read_whole(matcher, data)
    assert [
        (item.rule, item.line.number, item.line.text, item.line.rank, item.captures) for item in found
    ] == read
    assert lines == data.count(b"\n")
    assert len({item.bucket(60.0) for item in found}) > 20
    assert all(item.line.time is not None for item in found)
    assert found == scanned(matcher, data, len(data))[0]


def read_whole(matcher: Matcher, data: bytes) -> list[tuple[object, ...]]:
    reader = LineReader("train.log")
    lines = [*reader.feed(data), *reader.finish()]
    return [
        (rule, lines[index].number, lines[index].text, lines[index].rank, captures)
        for index, rule, captures in matcher.match(lines)
    ]


def test_time_of_a_match_comes_from_a_preceding_line(matcher: Matcher) -> None:
    stamped = "[2026-05-02 09:00:{:02d},000] [INFO] step {} loss 1.5"
    lines = [*(stamped.format(n, n) for n in range(50)), "  no stamp", OOM, *["nothing"] * 20, OOM]
    (first, last), _ = scanned(matcher, "\n".join(lines).encode(), 64)
    assert first.line.time == last.line.time == 1777712449.0
    assert (first.line.number, last.line.number) == (52, 73)


def test_line_begins_after_the_prefix_of_its_source(matcher: Matcher) -> None:
    data = b"gpu07: {'loss': 2.5}\n" + b"gpu07: KeyError: 'param_groups'\n" * 10
    for lead, count in ((certain_prefix(data), 10), (None, 0)):
        scan = MatchScan(MatchPatterns(matcher), "train.log", lead=lead)
        assert len([*scan.feed(data), *scan.finish()]) == count


def test_lines_are_matched_independently(matcher: Matcher) -> None:
    stamp = "[2026-05-02 09:00:{:02d},000] {}"
    lines = [stamp.format(1, OOM), *["nothing"] * 9, stamp.format(31, "[INFO] step 2 loss 1.5"), OOM]
    first, last = scanned(matcher, "\n".join(lines).encode(), 1 << 20)[0]
    assert (first.line.time, last.line.time) == (1777712401.0, 1777712431.0)


def test_catalogue_is_indexed_once(matcher: Matcher) -> None:
    made = literal_index.cache_info().misses
    catalogue = matcher.catalogue
    assert is_matchable(scanned_patterns(catalogue.pages.values()), catalogue.store)
    MatchPatterns(Matcher(catalogue))
    assert literal_index.cache_info().misses - made <= 1  # at most once, if others came between


def test_required_context_alone_is_not_read(matcher: Matcher) -> None:
    """Such a text may be on every seventh line of a log."""
    rule = next(page for page in matcher.catalogue.pages.values() if page.id == "gpu-p2p-hang")
    required = "gpu7:8120:8231 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"
    assert any(re.search(pattern, required) for pattern in rule.requires)
    scan = MatchScan(MatchPatterns(matcher))
    assert not list(scan.feed(f"{required}\n".encode() * 2 * (CHUNK // len(required))))
    assert not scan.waiting
    assert not list(scan.feed(f"{OOM}\n".encode() + b"step 1\n" * CHUNK))
    assert len(scan.waiting) == 1


def test_container_record_applies_to_all_its_segments(matcher: Matcher) -> None:
    bar = "\r".join(f" {n}%|#   | {n}/100 [00:01<00:01, 1.0s/it]" for n in range(30))
    log = f"2026-05-02T09:00:00.5Z stdout F {bar}\r[rank3]: {OOM}\n".encode() * 3
    for portion in (100, len(log)):
        found, _ = scanned(matcher, log, portion)
        assert [(item.line.number, item.line.rank, item.line.time) for item in found] == [
            (number, 3, 1777712400.5) for number in (1, 2, 3)
        ]


@pytest.mark.parametrize("portion", [4096, 1 << 18])
def test_overlong_lines_are_scanned(matcher: Matcher, portion: int) -> None:
    """Their beginning and their end are kept, as in a full reading."""
    long = "x" * 3 * MAX_LINE
    bars = "\r".join(["  1%|#    | 1/900 [00:10<10:00,  1.0it/s]"] * 5000)
    log = "\n".join((OOM, long, OOM + long, long + OOM, f"{bars}\r{OOM}\r{bars}", OOM, long)).encode()
    found, lines = scanned(matcher, log, portion)
    assert [item.line.number for item in found] == [1, 3, 4, 5, 6]
    assert [(item.rule, item.line.number) for item in found] == [
        read[:2] for read in read_whole(matcher, log)
    ]
    assert lines == 6


def test_memory_does_not_grow_with_line_length(matcher: Matcher) -> None:
    scan = MatchScan(MatchPatterns(matcher))
    portion = b"x" * (1 << 18)
    assert not [item for _ in range(140) for item in scan.feed(portion)]
    tracemalloc.start()
    for _ in range(200):
        assert not list(scan.feed(portion))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * len(portion)


@pytest.mark.parametrize("at", [0, CHUNK // 2, CHUNK - 90_000, CHUNK - 45_000, CHUNK - 1_000])
@pytest.mark.parametrize("ends", ["\n", ""])
def test_overlong_line_keeps_its_rank(matcher: Matcher, at: int, ends: str) -> None:
    """Its beginning names the rank, its end the failure; chunks may end between the two."""
    before = "step 1/9000 loss 1.5\n" * (at // 21)
    data = f"{before}[rank3]: {'x' * 90_000} {OOM}{ends}".encode()
    (found,), _ = scanned(matcher, data, 65_536)
    assert (found.rule, found.line.rank, found.line.number) == ("cuda-oom", 3, at // 21 + 1)


def test_match_before_a_hole_is_kept(matcher: Matcher) -> None:
    begins = CHUNK + MAX_LINE - 2 * len(OOM)
    log = (b"step 1 loss 2.0\n" * (begins // 16 + 1))[: begins - 1] + b"\n" + OOM.encode()
    log += b"x" * (CHUNK + MAX_LINE - len(log)) + b"\0" * 1000
    found, _ = scanned(matcher, log, len(log))
    assert [item.rule for item in found] == ["cuda-oom"]
