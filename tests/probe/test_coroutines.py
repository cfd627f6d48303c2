"""At a stall of an event loop, its tasks are reported: the thread's own stack shows only a wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath
from typing import Any, TypeVar

import pytest

from stallwatch_exporter.probe.answers import stacks
from stallwatch_rules.report.stacks import listing
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.rank_activity import activity_of_rank
from stallwatch_rules.stacks.reading import from_probe
from stallwatch_rules.stacks.records import RankAnswer, ThreadStack

_Result = TypeVar("_Result")


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in a thread that counts as the main one, which Playwright's loop may occupy."""
    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "_main_thread", pool.submit(threading.current_thread).result())
        return pool.submit(asyncio.run, coroutine).result()


async def reward(number: int, answers: dict[int, asyncio.Future[None]]) -> None:
    await answers[number]


async def rollouts(answers: dict[int, asyncio.Future[None]]) -> None:
    await asyncio.gather(*[reward(number, answers) for number in answers])


async def training(answered: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    answers = {number: loop.create_future() for number in range(3)}
    answers[0].set_result(None)
    beat = loop.create_task(asyncio.sleep(600), name="heartbeat")

    def watch() -> None:
        """Sample the stacks until the tasks are in their final places, then let them continue."""
        until = time.monotonic() + 120
        try:
            while not answered and time.monotonic() < until:
                answer = stacks()
                if len(tasks_of(answer)) == 5 and activity_of_rank(answer_of(answer)).place.endswith(
                    " in reward"
                ):
                    answered.append(answer)
                time.sleep(0.01)
        finally:
            for each in (answers[1], answers[2]):
                loop.call_soon_threadsafe(each.set_result, None)

    watching = threading.Thread(target=watch)
    watching.start()
    await loop.create_task(rollouts(answers))
    watching.join()
    beat.cancel()


def tasks_of(answer: Any) -> list[ThreadStack]:
    return [thread for thread in from_probe(answer) if thread.task]


def answer_of(answer: Any) -> RankAnswer:
    return RankAnswer(0, 1, "probe", threads=from_probe(answer))


def test_tasks_that_a_loop_waits_for_are_where_the_rank_is() -> None:
    messages: list[Any] = []
    run(training(messages))
    assert messages, "the tasks were never seen to wait"
    awaited = [thread for thread in tasks_of(messages[0]) if thread.task == "awaited"]
    assert [frame.function for thread in awaited for frame in thread.frames] == [
        "training",
        "rollouts",
        "reward",
    ]
    doing = activity_of_rank(answer_of(messages[0]))
    assert doing.kind == "code" and doing.place.endswith(" in reward")
    assert doing.place.startswith(f"{PurePath(__file__).name}:")
    listed = listing(fold([answer_of(messages[0])], time=0.0), [answer_of(messages[0])])
    assert "  task heartbeat, innermost call last:" in listed
    assert listed.count("task without a name (awaited), ") == 3
    assert listed.count("task without a name, ") == 1  # the other task that `gather` waits for
    assert fold([answer_of(messages[0])], time=0.0).groups[0].frames[-1].endswith("in reward")


def test_loop_that_runs_is_where_its_thread_is() -> None:
    """The thread's stack shows everything, so the waits of other tasks are left out."""

    async def training() -> RankAnswer:
        task = asyncio.get_running_loop().create_task(asyncio.sleep(600))
        messages: list[Any] = []
        other = threading.Thread(target=lambda: messages.append(stacks()))
        other.start()
        while other.is_alive():
            time.sleep(0.001)
        task.cancel()
        return answer_of(messages[0])

    doing = activity_of_rank(run(training()))
    assert doing.place.endswith("training")
    assert "sleep" not in [frame.function for frame in doing.frames]
