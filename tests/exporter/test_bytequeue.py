"""The queue to the miner is bounded, drops instead of waiting, and says where something is missing."""

from __future__ import annotations

from stallwatch_exporter.running.bytequeue import ByteQueue, Chunk


def test_what_does_not_fit_is_dropped_counted_and_marked() -> None:
    queue = ByteQueue(max_bytes=10)
    queue.put("stdout", b"123456\n", 1.0)
    queue.put("stdout", b"a\nb\nc\n", 2.0)
    queue.put("stderr", b"x\n", 3.0)
    queue.put("stdout", b"no end", 4.0)
    assert queue.dropped == 4
    assert queue.take(0) == [Chunk("stdout", b"123456\n", 1.0, False), Chunk("stderr", b"x\n", 3.0, False)]
    queue.put("stdout", b"later", 5.0)
    queue.put("stdout", b"again", 6.0)
    assert [chunk.gap for chunk in queue.take(0)] == [True, False]


def test_it_ends_when_it_is_closed_and_empty() -> None:
    queue = ByteQueue()
    queue.put("stdout", b"x", 1.0)
    assert not queue.ended
    queue.close()
    assert not queue.ended
    assert queue.take(60) == [Chunk("stdout", b"x", 1.0, False)]
    assert queue.take(60) == []  # does not wait
    assert queue.ended
