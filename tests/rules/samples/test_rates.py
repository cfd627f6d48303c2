"""Numbers beside the loss: which word before a name belongs to it, and which word makes it another name."""

from __future__ import annotations

import pytest

from stallwatch_rules.samples.pairs import memory, rates
from stallwatch_rules.text.numbers import duration

MIB, GIB = 1024.0**2, 1024.0**3


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("currsamplespersec=2.5", {"samples_per_second": 2.5}),
        ("runningavgsamplespersec=1.5, currsamplespersec=2.5", {"samples_per_second": 2.5}),
        ("avgsamples/sec=3", {}),
        ("train_samples_per_second: 8", {"samples_per_second": 8}),
        ("at 12.5 samples/s", {"samples_per_second": 12.5}),
        ("at 12.5 samples/s, samples/sec: 9", {"samples_per_second": 12.5}),
        ("samples/sec: 9, at 12.5 samples/s", {"samples_per_second": 9}),
        ("1.2.5 samples/s", {}),
        ("tps: 7", {"tokens_per_second": 7}),
        ("https: 7", {}),
        ("tgs = 1,200.5", {"tokens_per_second": 1200.5}),
        ("perf/throughput:88", {"tokens_per_second": 88}),
        ("superperf/throughput:88", {}),
        ("tokens per gpu per second: 6", {"tokens_per_second": 6}),
        ("at 512 tok/s", {"tokens_per_second": 512}),
        ("memory: 3gb", {"memory_peak_bytes": 3 * GIB}),
        ("max_mem: 4", {"memory_peak_bytes": 4 * MIB}),
        ("peak_memory(gib): 5", {"memory_peak_bytes": 5 * GIB}),
        ("max mem: 6", {"memory_peak_bytes": 6 * MIB}),
        ("cpu_mem: 7", {}),
        ("climax_mem: 7", {}),
        ("data/mem: 7", {}),
        ("loss 1.0 val loss 2.5", {"eval_loss": 2.5}),
        ("loss 1.0 test_loss: 2.5", {"eval_loss": 2.5}),
        ("loss 1.0", {}),
    ],
)
def test_separate_name_is_recognized(text: str, values: dict[str, float]) -> None:
    found: dict[str, float] = {}
    rates(text, found)
    assert found == values


def test_other_memory_names_are_not_device_memory() -> None:
    found = {"memory_allocated_bytes": 3 * GIB, "memory_peak_bytes": 4 * GIB}
    assert memory("x=1, MemAllocated=3GB, MaxMemAllocated=4GB") == found
    assert memory("HostMemAllocated=3GB") == {}
    assert memory("MA 3.0 GB         Max_MA 4.0 GB         CA 5.0 GB") == found
    assert memory("CMA 3.0 GB        Max_MA 4.0 GB         CA 5.0 GB") == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10:27", 627),
        ("0:03:34", 214),
        ("100:03:34", 360214),
        ("1:2", None),
        ("1:234:05", None),
        ("1:2:3:04", None),
        (":07", None),
        (":1:07", None),
        ("07", None),
        ("", None),
        ("2 days, 6:39:40", 196780),
        ("10:27.5", 627.5),
        ("2h 3m 4s", 7384),
    ],
)
def test_durations_are_parsed(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds
