"""Run the inputs of a target in a supervised process that has limited memory.

The process writes the number of its current input to shared memory. With this number, the caller can identify
an input that blocks or ends the process, and can continue with the next input.
"""

from __future__ import annotations

import base64
import gc
import json
import logging
import math
import multiprocessing
import random
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.mutation import Mutator
from fuzzing.targets import BY_NAME, Target, seconds_for, wrong

FLOOR_SECONDS = 0.01  #: shorter times are ignored, because they depend more on the machine than on the parser
MOST_TIMES = 10  #: limit of an input's time, in multiples of the median time per byte
HANG_SECONDS = 60.0  #: elapsed seconds after which one input counts as a hang
GROWTH = 192 * 1024 * 1024  #: number of bytes by which an input can increase the peak memory
_MEMORY = 3 * 1024**3  # limit of the address space in addition to its size at the start of the process
_LEARNT = 300  # number of inputs that determine the median time before times are checked
_KEPT = 4000  # maximum number of bytes of an input in a report
_RETRIES = 3
_OF_A_KIND = 3  # maximum number of failures of each kind that a process reports


@dataclass
class Failure:
    """An input that a parser could not handle, and the numbers that reproduce it."""

    target: str
    seed: int
    number: int
    kind: str  #: "raised", "slow", "memory", "hang", or "killed"
    what: str
    size: int = 0
    input: str = ""  #: beginning of the input in base64


@dataclass
class Result:
    """A summary of the results for a target's inputs."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    slowest: float = 0.0  #: highest ratio of an input's time to the median, for times above the floor
    peak: int = 0  #: peak memory of the process in bytes
    failures: list[Failure] = field(default_factory=list)

    def add(self, part: Result) -> None:
        """Add the results for other inputs of the target."""
        self.inputs += part.inputs
        self.seconds += part.seconds
        self.slowest, self.peak = max(self.slowest, part.slowest), max(self.peak, part.peak)
        self.failures += part.failures


def make(target: Target, seed: int, number: int, mutator: Mutator | None = None) -> bytes:
    """Return the input with this `number` for a target.

    As long as there are unused samples, every tenth input is an unchanged sample.
    """
    mutator = mutator or Mutator(target.samples(), target.tokens, json_lines=target.json)
    if number % 10 == 0 and number // 10 < len(mutator.samples):
        return mutator.samples[number // 10]
    return mutator.make(random.Random(f"{seed}/{target.name}/{number}"))


class Judge:
    """Compares an input's time with the target's median time per byte.

    The time of an empty input is subtracted from all times, because it dominates the time of short inputs.
    Some parsers reject most inputs after the first bytes, which takes almost no time. Therefore, the median
    of the unchanged samples, which a parser reads completely, is used if it is larger.
    """

    def __init__(self, target: Target, samples: Sequence[bytes] = ()) -> None:
        self._target = target
        self._least = min(seconds_for(target, b"") for _ in range(5))
        whole = [self._rate(sample, seconds_for(target, sample)) for sample in samples]
        self._of_samples = statistics.median(whole) if whole else 0.0
        self._rates: list[float] = []
        self._median = 0.0

    def take(self, data: bytes, seconds: float) -> float:
        """Return the time of an input as a multiple of the median.

        Return 0 if the time is below the floor, or if the median is not known yet.
        """
        if self._median and seconds < FLOOR_SECONDS and len(self._rates) >= 4 * _LEARNT:
            return 0.0
        rate = self._rate(data, seconds)
        if len(self._rates) < 4 * _LEARNT:
            self._rates.append(rate)
            if len(self._rates) % _LEARNT == 0:
                self._median = max(self._of_samples, statistics.median(self._rates))
        if seconds < FLOOR_SECONDS or not self._median or rate < MOST_TIMES * self._median:
            return rate / self._median if self._median and seconds >= FLOOR_SECONDS else 0.0
        again = min(
            seconds_for(self._target, data) for _ in range(_RETRIES)
        )  # the machine might have been busy
        if again < FLOOR_SECONDS:
            return 0.0
        return self._rate(data, again) / self._median

    def _rate(self, data: bytes, seconds: float) -> float:
        return max(0.0, seconds - self._least) / max(64, self._target.size(data))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, resource.RLIM_INFINITY))


def _work(name: str, seed: int, first: int, last: int, timed: bool, end: float, at: Any, out: Any) -> None:
    """Run inputs `first` to `last` in this process. Send failures immediately, and the result at the end."""
    logging.disable(logging.WARNING)  # parsers log warnings about the parts that they leave out
    target = BY_NAME[name]
    mutator = Mutator(target.samples(), target.tokens, json_lines=target.json)
    samples = mutator.samples[:: len(mutator.samples) // 20 + 1] if timed else []
    for sample in samples:  # compile patterns and fill caches
        wrong(target, sample)
    _limit_memory()
    gc.collect()
    gc.freeze()  # otherwise, a slow garbage collection would count toward an input's time
    judge = Judge(target, samples) if timed else None
    result = Result(name)
    peak, seen = _peak(), dict[str, int]()

    def fail(kind: str, what: str, data: bytes, number: int) -> None:
        key = what.partition(": ")[0] if kind == "raised" else kind
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= _OF_A_KIND:
            kept = base64.b64encode(data[:_KEPT]).decode()
            out.send(Failure(name, seed, number, kind, what, len(data), kept))

    for number in range(first, last):
        if time.monotonic() > end:
            break
        result.inputs += 1
        data = make(target, seed, number, mutator)
        at.value = number
        began = time.process_time()
        error = wrong(target, data)
        took = time.process_time() - began
        result.seconds += took
        if error is not None:
            fail("raised", error, data, number)
        if judge is not None and (times := judge.take(data, took)):
            result.slowest = max(result.slowest, times)
            if times > MOST_TIMES:
                fail(
                    "slow", f"{times:.0f} times the median, {took:.3f} s for {len(data)} bytes", data, number
                )
        if number % 64 == 0 or took > FLOOR_SECONDS:
            grown, peak = _peak() - peak, _peak()
            if grown > GROWTH:
                fail("memory", f"the peak grew by {grown >> 20} MiB", data, number)
        if number % 20_000 == 0:
            gc.collect()
    result.peak = _peak()
    out.send(result)


def run(
    target: Target, seed: int, first: int, last: int, *, timed: bool = True, end: float = math.inf
) -> Result:
    """Run inputs `first` to `last` of a target. If an input ends the worker process, start a new process.

    Stop the run at `end`, which is a time on the monotonic clock.
    """
    total = Result(target.name)
    began = first
    while began < last:
        for part in _one_process(target, seed, began, last, timed, end):
            if isinstance(part, Failure):
                total.failures.append(part)
                if part.kind in ("hang", "killed"):
                    total.inputs += part.number + 1 - began
                    began = part.number + 1
            else:
                total.add(part)
                began = last
    return total


def _one_process(
    target: Target, seed: int, first: int, last: int, timed: bool, end: float
) -> Iterator[Failure | Result]:
    context = multiprocessing.get_context("fork")
    at = context.Value("q", first, lock=False)
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(target.name, seed, first, last, timed, end, at, theirs), daemon=True
    )
    sys.stdout.flush()
    process.start()
    theirs.close()
    seen, since = first, time.monotonic()
    try:
        while True:
            if mine.poll(1.0):
                try:
                    part = mine.recv()
                except EOFError:
                    process.join()
                    yield _ended(
                        target, seed, at.value, f"the process ended with {process.exitcode}", "killed"
                    )
                    return
                yield part
                if isinstance(part, Result):
                    return
            if at.value != seen:
                seen, since = at.value, time.monotonic()
            elif time.monotonic() - since > HANG_SECONDS:
                yield _ended(target, seed, at.value, f"no result after {HANG_SECONDS:.0f} s", "hang")
                return
    finally:
        process.kill()
        process.join()
        mine.close()


def _ended(target: Target, seed: int, number: int, what: str, kind: str) -> Failure:
    data = make(target, seed, number)
    return Failure(target.name, seed, number, kind, what, len(data), base64.b64encode(data[:_KEPT]).decode())


def as_line(failure: Failure) -> str:
    """Return the failure as a line of JSON."""
    return json.dumps(asdict(failure), ensure_ascii=True)
