"""A simulated run of 1,024 ranks on 128 hosts in the dashboard's files: one rank holds up the others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_exporter.incident import Event, Incident
from stallwatch_exporter.rings.presence import process_namespace
from stallwatch_exporter.runs.copies import CriRecord, format_record
from stallwatch_exporter.runs.runfolder import AgentInfo
from stallwatch_rules.stacks.records import StackGroup, StallStacks

RUN = "pretrain-8123.0"
HOSTS, EACH = 128, 8
ODD, SLOW, SILENT = 611, "n9", "n100"  #: rank 611 is on n77
_MOMENTS, _EVERY, _STEP = 120, 10.0, 2.0  # number of samples, seconds between them, seconds of a step
_HANG, _SILENCE = 300.0, 200.0  # seconds before the end
_AHEAD = 3600.0  # the run's data end in the future, so that the pages show it as running


def host_of(rank: int) -> str:
    return f"n{rank // EACH + 1}"


def make(home: Path) -> None:
    """Write the metrics, two hosts' folders of the run and its open incident below `home`."""
    now = time.time()
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    _numbers(home, now)
    for node in (0, 76):  # the other hosts have no folder on this machine
        _folder(home, now, node)
    store = IncidentStore.at_home(home)
    store.upsert(incident(now))
    store.close()


def _folder(home: Path, now: float, node: int) -> None:
    host = f"n{node + 1}"
    folder = home / "runs" / (f"{RUN}@{host}" if node else RUN)
    (folder / "ranks").mkdir(parents=True)
    info = AgentInfo(
        run=RUN,
        pid=os.getpid(),
        host=host,
        command=["torchrun", "--nnodes", "128", "train.py"],
        cwd="/",
        started_at=now - _MOMENTS * _EVERY,
        updated_at=now + _AHEAD,
        state="stalled",
        namespace=process_namespace(),
        job="8123.0",
        key="0123456789abcdef",
        node=node,
    )
    (folder / "agent.json").write_bytes(msgspec.json.encode(info))
    line = CriRecord(int((now - _HANG) * 1e9), "stdout", True, f"step 450/900 on {host}".encode())
    (folder / "ranks" / f"rank{node * EACH}.log").write_bytes(format_record(line))


def incident(now: float) -> Incident:
    """Return the incident of the hang, as the agents of all hosts report it together."""
    others = [rank for rank in range(HOSTS * EACH) if rank != ODD and host_of(rank) != SILENT]
    stacks = StallStacks(
        time=now - _HANG + 60,
        seconds=2.0,
        groups=[
            StackGroup(others, "collective", what="all_reduce", place="train.py:88 in step"),
            StackGroup([ODD], "code", place="train.py:11 in score", frames=["train.py:11 in score"]),
        ],
        odd=[ODD],
        why="elsewhere",
        hosts={f"n{n + 1}": f"{n * EACH}-{n * EACH + EACH - 1}" for n in range(HOSTS)},
        silent=[SILENT],
        confidence=0.97,
    )
    opened = now - _HANG + 60
    return Incident(
        id=f"{RUN}/stall/silent-hang-no-error/1",
        run=RUN,
        kind="stall",
        rule="silent-hang-no-error",
        severity="critical",
        status="open",
        episode=1,
        opened_at=opened,
        updated_at=now,
        host=host_of(ODD),
        rank=ODD,
        step=450,
        stalled_seconds=_HANG,
        threshold_seconds=60.0,
        stacks=stacks,
        hosts=[f"n{n + 1}" for n in range(HOSTS) if f"n{n + 1}" != SILENT],
        history=[
            Event(opened, "opened", "stall", "silent-hang-no-error", "critical"),
            Event(opened + 4, "stacks", "stall", "silent-hang-no-error", "critical", ODD),
        ],
    )


def step_at(rank: int, age: float) -> float:
    """Return a rank's step at `age` seconds before the end: all ranks stop one step after the odd rank."""
    moving = int((_MOMENTS * _EVERY - max(age, _HANG)) / _STEP)
    if host_of(rank) == SLOW and 600 < age < 900:
        moving -= 3
    return moving if rank != ODD or age > _HANG else moving - 1


def _numbers(home: Path, now: float) -> None:
    store = MetricStore(home / "metrics.duckdb")
    for moment in range(_MOMENTS):
        age = (_MOMENTS - 1 - moment) * _EVERY
        readings = []
        for rank in range(HOSTS * EACH):
            host = host_of(rank)
            if host == SILENT and age < _SILENCE:
                continue
            readings.append(_reading("rank_step", step_at(rank, age), host, rank))
            if rank % EACH == 0:
                readings.append(_reading("step", step_at(0, age), host))
        store.write(readings, now - age)
    seen_at = [_reading("step", step_at(0, 0.0), f"n{n + 1}") for n in range(HOSTS) if f"n{n + 1}" != SILENT]
    store.write(seen_at, now + _AHEAD)
    store.close()


def _reading(name: str, value: float, host: str, rank: int | None = None) -> Reading:
    return Reading(RUN, f"stallwatch_{name}", rank, "", float(value), f"{host}:19400")
