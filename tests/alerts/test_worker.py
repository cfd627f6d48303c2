from __future__ import annotations

import threading

from stallwatch_alerts.worker import Worker


def test_order_is_kept_and_close_finishes_the_queue() -> None:
    seen: list[int] = []
    worker: Worker[int] = Worker("w", lambda item, _: seen.append(item))
    for number in range(100):
        assert worker.put(number)
    assert worker.close(120)
    assert seen == list(range(100))
    assert not worker.put(1)


def test_failing_handler_is_counted_and_the_next_item_is_handled() -> None:
    seen: list[int] = []

    def handle(item: int, _: threading.Event) -> None:
        if item == 1:
            raise RuntimeError("no")
        seen.append(item)

    worker: Worker[int] = Worker("w", handle)
    worker.put(1)
    worker.put(2)
    assert worker.close(120)
    assert (seen, worker.failed) == ([2], 1)


def test_full_queue_drops_items_and_counts_them() -> None:
    entered, release = threading.Event(), threading.Event()

    def handle(item: int, _: threading.Event) -> None:
        entered.set()
        release.wait(120)

    worker: Worker[int] = Worker("w", handle, capacity=1)
    worker.put(0)
    assert entered.wait(120)
    assert worker.put(1)
    assert not worker.put(2)
    assert worker.dropped == 1
    release.set()
    assert worker.close(120)


def test_close_gives_up_on_a_blocked_handler() -> None:
    entered = threading.Event()

    def handle(item: int, give_up: threading.Event) -> None:
        entered.set()
        give_up.wait(120)

    worker: Worker[int] = Worker("w", handle)
    for number in range(3):
        worker.put(number)
    assert entered.wait(120)
    assert not worker.close(0.05)
    # The first delivery was cancelled, and is counted if a busy machine delays its end.
    assert worker.dropped == 2 + worker._abandoned


def test_item_in_progress_at_close_is_counted_once() -> None:
    entered, release, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(item: int, _: threading.Event) -> None:
        entered.set()
        release.wait(120)
        ended.set()
        raise RuntimeError("no")

    worker: Worker[int] = Worker("w", handle)
    worker.put(0)
    assert entered.wait(120)
    assert not worker.close(0)
    assert (worker.dropped, worker.failed) == (1, 0)
    release.set()
    assert ended.wait(120)
    assert not worker.close(0)
    assert (worker.dropped, worker.failed) == (1, 0)


def test_worker_starts_before_the_first_item() -> None:
    seen: list[object] = []

    def begin() -> None:
        seen.append("begun")
        raise RuntimeError("no")

    worker: Worker[int] = Worker("w", lambda item, _: seen.append(item), begin=begin)
    worker.put(1)
    assert worker.close(120)
    assert seen == ["begun", 1]
