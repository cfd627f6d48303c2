"""The probe of a process: it reports the values that it got, and no problems of its own."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stallwatch_exporter.probe import api
from stallwatch_exporter.probe.api import FIRST_RECORDS, RECORD_SECONDS, Probe
from stallwatch_exporter.probe.draft import Reading
from stallwatch_exporter.probe.events import MOST_BYTES, EventFile
from stallwatch_exporter.probe.hooks import losses
from stallwatch_exporter.probe.hooks.torch import count_steps
from stallwatch_exporter.probe.layout import FIELDS, LASTING
from stallwatch_exporter.probe.ring import RingWriter
from stallwatch_exporter.rings.reader import Record, RingReader


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def probe(tmp_path: Path, clock: Clock) -> Probe:
    return Probe(tmp_path, {"RANK": "5", "LOCAL_RANK": "1"}, clock)


def rings(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ring"))


def records(folder: Path) -> list[Record]:
    (path,) = rings(folder)
    return RingReader(path).read().records


def test_no_file_is_created_before_the_first_report(tmp_path: Path, probe: Probe) -> None:
    probe.value("loss", 1.0)
    assert list(tmp_path.iterdir()) == []
    probe.step()
    assert records(tmp_path)[0].rank == 5
    assert RingReader(rings(tmp_path)[0]).header.local_rank == 1


def test_steps_are_counted_with_time_and_values(tmp_path: Path, probe: Probe, clock: Clock) -> None:
    probe.step(loss=2.0, grad_norm=1)
    clock.now += 0.5
    probe.value("loss", 1.5)
    probe.step()
    clock.now += 0.25
    probe.step(40)
    one, two, three = (each.values for each in records(tmp_path))
    assert (one["step"], one["loss"], one["grad_norm"]) == (1.0, 2.0, 1.0)
    assert "step_seconds" not in one
    assert (two["step"], two["loss"], two["step_seconds"]) == (2.0, 1.5, 0.5)
    assert "grad_norm" not in two  # the value belonged to the first step
    assert (three["step"], three["step_seconds"]) == (40.0, 0.25)


def test_nan_loss_is_reported(tmp_path: Path, probe: Probe) -> None:
    probe.step(loss=float("nan"))
    probe.value("grad_norm", float("nan"))
    probe.step()
    first, second = (each.values for each in records(tmp_path))
    assert first["loss"] != first["loss"] and "grad_norm" not in first
    assert second["grad_norm"] != second["grad_norm"] and "loss" not in second


def test_step_time_excludes_other_phases(tmp_path: Path, probe: Probe, clock: Clock) -> None:
    probe.step()
    probe.phase("eval")
    clock.now += 60
    probe.step()
    assert [each.values.get("step_seconds") for each in records(tmp_path)] == [None, None, None]
    assert [each.values["phase"] for each in records(tmp_path)] == [1.0, 2.0, 1.0]


class Optimizer:
    """Stand-in for an optimizer of torch."""

    param_groups = ({"lr": 0.5},)


def many_steps(probe: Probe) -> Callable[[], None]:
    """Make steps until a record no longer covers a single step; return a function that makes another."""
    step = partial(count_steps(probe), Optimizer())
    for _ in range(FIRST_RECORDS + 1):
        step()
    return step


def test_quick_steps_share_records_and_the_last_step_is_visible(
    tmp_path: Path, probe: Probe, clock: Clock
) -> None:
    step = many_steps(probe)
    reader = RingReader(rings(tmp_path)[0])
    reader.read()
    took = RECORD_SECONDS / 4
    for _ in range(5):
        clock.now += took
        step()
    kept, last = reader.read().records
    assert kept.values["step"] == FIRST_RECORDS + 5 and kept.values["learning_rate"] == 0.5
    assert kept.values["step_seconds"] == pytest.approx(took)  # duration of each step
    assert (last.values["step"], last.time) == (FIRST_RECORDS + 6, clock.now)


def test_step_keeps_its_record_if_a_phase_follows_at_once(tmp_path: Path, probe: Probe, clock: Clock) -> None:
    step = many_steps(probe)
    clock.now += RECORD_SECONDS / 2
    step()
    clock.now += RECORD_SECONDS / 4
    probe.phase("eval")
    step()
    before, phase, after = records(tmp_path)[-3:]
    assert (before.values["step"], before.time) == (FIRST_RECORDS + 2, clock.now - RECORD_SECONDS / 4)
    assert (phase.values["phase"], phase.time, "step" in phase.values) == (2.0, clock.now, False)
    assert (after.values["phase"], after.values["step"]) == (1.0, FIRST_RECORDS + 3)


def test_shared_record_has_the_backward_time_of_its_first_step(
    tmp_path: Path, probe: Probe, clock: Clock
) -> None:
    tensor = type("Tensor", (), {"backward": lambda _: None, "numel": lambda _: 1})
    losses.install(SimpleNamespace(Tensor=tensor), probe)
    probe.reported_by_user = True  # the user reports the loss, too
    for _ in range(FIRST_RECORDS):
        probe.step()
    for number in range(1, 4):
        clock.now += number / 100
        tensor().backward()
        clock.now += 0.01
        probe.step()
    own = [each.values["own_seconds"] for each in records(tmp_path)[FIRST_RECORDS:]]
    assert own == pytest.approx([0.01, 0.02])


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_invalid_loss_is_not_overwritten_by_the_next_loss(
    tmp_path: Path, probe: Probe, clock: Clock, loss: float
) -> None:
    many_steps(probe)
    for found in (loss, 1.0):
        clock.now += RECORD_SECONDS / 4
        probe.step(loss=found)
    assert records(tmp_path)[-1].values["loss"] != 1.0
    clock.now += RECORD_SECONDS
    probe.step(loss=1.0)
    probe.step(loss=1.0)
    before, after = records(tmp_path)[-2:]
    assert before.values["loss"] != before.values["loss"] and after.values["loss"] == 1.0


def test_counts_accumulate_and_are_written_within_a_second(
    tmp_path: Path, probe: Probe, clock: Clock
) -> None:
    for _ in range(5):
        probe.add("invalidations_short")
    ring = RingReader(rings(tmp_path)[0])
    # the pending record
    assert [each.values["invalidations_short"] for each in ring.read().records] == [1.0, 5.0]
    assert ring.read().records == []
    clock.now += 1.0
    probe.add("invalidations_short")
    probe.step()
    assert [each.values["invalidations_short"] for each in records(tmp_path)] == [1.0, 6.0, 6.0]
    assert [each.values["invalidations_short"] for each in ring.read().records] == [6.0, 6.0]


def test_expensive_readings_are_taken_once_a_second(tmp_path: Path, probe: Probe, clock: Clock) -> None:
    taken: list[float] = []

    def sample() -> dict[str, float]:
        taken.append(clock.now)
        return {"resident_bytes": float(len(taken))}

    probe.samplers.append(sample)
    for _ in range(10):
        probe.step()
        clock.now += 0.25
    assert taken == [1000.0, 1001.0, 1002.0]
    assert records(tmp_path)[-1].values["resident_bytes"] == 3.0


def test_internal_errors_are_counted_and_suppressed(tmp_path: Path, probe: Probe) -> None:
    probe.samplers.append(lambda: {"resident_bytes": 1 / 0})
    probe.step(loss=object(), no_such_field=1.0, grad_norm=2.0)
    probe.value("nothing", 1)
    probe.phase("lunch")
    probe.step()
    reader = RingReader(rings(tmp_path)[0])
    messages = [each.values for each in reader.read().records]
    assert [each["step"] for each in messages] == [1, 2]
    assert messages[0]["grad_norm"] == 2.0
    assert reader.faults == 5  # the sampler, two values, a name, a phase


def test_missing_folder_is_tried_once(tmp_path: Path, clock: Clock) -> None:
    probe = Probe(tmp_path / "gone", {"RANK": "0"}, clock)
    probe.step()
    probe.event("warning", text="x")
    (tmp_path / "gone").mkdir()
    probe.step()
    assert list((tmp_path / "gone").iterdir()) == []


def test_without_a_folder_nothing_happens(clock: Clock) -> None:
    probe = Probe(None, {}, clock)
    probe.step(loss=object())
    probe.event("warning", text="x")


def test_second_thread_never_waits(tmp_path: Path, probe: Probe) -> None:
    probe.step()
    assert probe._turn.pop()
    other = threading.Thread(target=probe.step)
    other.start()
    other.join(timeout=120)
    assert not other.is_alive()
    probe._turn.append(True)
    reader = RingReader(rings(tmp_path)[0])
    assert len(reader.read().records) == 1
    assert reader.dropped_records == 1


def test_concurrent_threads_create_one_ring(
    tmp_path: Path, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow_disk(*given: Any) -> RingWriter:
        begun.set()
        assert go_on.wait(120)
        return RingWriter(*given)

    monkeypatch.setattr(api, "RingWriter", slow_disk)
    other = threading.Thread(target=probe.event, args=("log",), kwargs={"text": "first"})
    other.start()
    assert begun.wait(120)
    monkeypatch.setattr(api, "RingWriter", RingWriter)  # a second writer would make a ring at once
    probe.event("log", text="second")
    probe.step()
    go_on.set()
    other.join()
    probe.event("log", text="third")
    (path,) = rings(tmp_path)
    lines = path.with_suffix(".jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["first", "third"]
    assert probe._missed == 2 and probe._faults == 0


def test_forked_child_does_not_write_to_the_parents_ring(tmp_path: Path, probe: Probe) -> None:
    probe.step()
    child = os.fork()
    if child == 0:
        probe.forked()
        probe.step(7)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    probe.step()
    found = {path.name.split("-")[1]: RingReader(path).read().records for path in rings(tmp_path)}
    steps = {pid: [each.values["step"] for each in given] for pid, given in found.items()}
    assert steps == {str(os.getpid()): [1.0, 2.0], str(child): [7.0]}


# ---- text


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_repeated_events_are_recorded_at_powers_of_ten(tmp_path: Path, probe: Probe) -> None:
    for _ in range(120):
        probe.event("warning", "same", text="look out \u2026")
    (path,) = tmp_path.glob("*.jsonl")
    assert path.with_suffix(".ring") in rings(tmp_path)
    assert [each["count"] for each in lines(path)] == [1, 10, 100]
    assert lines(path)[0]["text"] == "look out \u2026"
    assert path.stat().st_mode & 0o077 == 0


def test_process_becomes_a_rank_with_its_first_step(tmp_path: Path, clock: Clock) -> None:
    probe = Probe(tmp_path, {}, clock)
    probe.event("warning", text="of a launcher")
    assert list(tmp_path.iterdir()) == []
    probe.step()
    probe.event("warning", text="of a rank")
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


def test_event_file_is_bounded_and_counts_dropped_events(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "x.jsonl", most_bytes=1000, kept_bytes=0)
    output = sum(file.write("warning", text=f"number {number} " + "x" * 80) for number in range(50))
    assert 0 < output < 10
    assert output + file.dropped == 50
    assert len(lines(tmp_path / "x.jsonl")) == output
    assert (tmp_path / "x.jsonl").stat().st_size <= 1000


def test_full_event_file_has_room_for_the_final_exception(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "x.jsonl")
    while file.write("warning", text="x" * 1000):
        pass
    assert not file.write("checkpoint", path="/out/checkpoint-1" + "x" * 1000)
    assert file.write("exception", message="\u4e2d" * 2000, frames=["/home/user/train.py:1 step" * 4] * 40)
    assert lines(tmp_path / "x.jsonl")[-1]["kind"] == "exception"
    assert (tmp_path / "x.jsonl").stat().st_size <= MOST_BYTES


def test_missing_event_file_is_counted_and_not_fatal(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "no" / "x.jsonl")
    assert file.write("warning", text="x") is False
    assert file.dropped == 1


# ---- devices


class Event:
    passed = False

    def record(self) -> None: ...

    def query(self) -> bool:
        return self.passed


class OnDevice:
    """Number on a device that would have to be waited for."""

    class device:
        type = "xpu9"

    def __float__(self) -> float:
        raise AssertionError("this waits for the device")


NAMED = {name: 1.5 + place for place, name in enumerate(FIELDS) if name in signature(Probe.step).parameters}


@pytest.mark.parametrize("name", NAMED)
def test_step_with_all_values_equals_separate_values(
    tmp_path: Path, probe: Probe, clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All floats are packed at once; otherwise each value is taken alone, with no wait for a device."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    probe.value("beats", 3.0)
    probe.step(7, **NAMED)
    clock.now += 2.0
    probe.step(8, **{**NAMED, name: int(NAMED[name])})
    probe.step(9, **{**NAMED, name: None})
    probe.step(10, **{**NAMED, name: float("nan")})
    probe.step(11, **{**NAMED, name: OnDevice()})
    all_values, with_int, without, with_nan, on_device = (each.values for each in records(tmp_path))
    expected = {**NAMED, "step": 7.0, "phase": 1.0, "beats": 3.0}
    assert all_values == expected
    assert with_int == {**expected, "step": 8.0, "step_seconds": 2.0, name: float(int(NAMED[name]))}
    del expected[name]
    lasting = {name: with_int[name]} if name in LASTING else {}
    assert without == {**expected, **lasting, "step": 9.0, "step_seconds": 0.0}
    assert with_nan.pop(name, 0.0) != 1.5 and {**with_nan, "step": 7.0} == {**expected, "step_seconds": 0.0}
    assert on_device["step"] == 11.0 and probe._faults == 0


@pytest.mark.repro
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_distributed_tensor_is_not_read(tmp_path: Path, probe: Probe) -> None:
    """Reading a sum over several ranks is a collective, which the other ranks do not join."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    tensor = importlib.import_module("torch.distributed.tensor")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        loss = tensor.DTensor.from_local(torch.tensor(2.0), mesh, [tensor.Partial()])
        probe.step(loss=loss, grad_norm=torch.tensor(0.5))
    finally:
        distributed.destroy_process_group()
    values = records(tmp_path)[0].values
    assert "loss" not in values and values["grad_norm"] == 0.5
    assert probe._faults == 0


def test_value_on_a_device_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, probe: Probe
) -> None:
    monkeypatch.setattr(Reading, "offer", lambda self, value: setattr(self, "_event", Event()))
    probe.step(loss=OnDevice())
    assert "loss" not in records(tmp_path)[0].values
    reading = probe._draft.waiting["loss"]
    probe.step()
    reading._host = 0.75
    reading._event.passed = True
    probe.step()
    assert [each.values.get("loss") for each in records(tmp_path)] == [None, None, 0.75]
