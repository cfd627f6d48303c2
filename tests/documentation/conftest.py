"""A folder in which the commands of a page can run, with what the pages talk about."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from ports import free_port

from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.spans import spans_of

TRAIN = """\
import time

for step in range(1, 31):
    time.sleep(0.05)
    print(f"step {step}/30 loss={2 / step:.3f}", flush=True)
"""
FAILING = """\
step 1/90 loss 1.5
Traceback (most recent call last):
  File "/opt/e/lib/python3.11/site-packages/trl/trainer/grpo.py", line 512, in step
    raise TimeoutError(msg)
TimeoutError: the kitchen sent no soup to table 7
"""
WAITS = {"kind": "collective", "what": "all_reduce", "place": "train.py:13 in step"}


class Chat(BaseHTTPRequestHandler):
    """A chat that takes every message."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def chat() -> Iterator[str]:
    """The URL of a chat."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"json://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's home directory."""
    return tmp_path / "home"


@pytest.fixture
def folder(root: Path, tmp_path: Path, home: Path, chat: str) -> Path:
    """The current folder of a page's commands."""
    here = tmp_path / "here"
    here.mkdir(mode=0o700)
    _logs(root, here)
    _programs(tmp_path / "bin", here)
    (here / "stallwatch.toml").write_text(f'[alerts]\nurls = ["{chat}"]\n')
    (here / "ds_config.json").write_text('{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}')
    (here / "accelerate.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 8\n")
    (here / "requirements.txt").write_text("torch==2.6.0\ndeepspeed==0.16.4\n")
    _checkpoint(here / "output/checkpoint-500")
    _stacks(here / "n1.json", "n1", StackGroup([0, 1], **WAITS))
    _stacks(here / "n2.json", "n2", StackGroup([2], "code", place="train.py:8 in score"))
    shutil.copytree(root / "tests/logs/flight_recorder", home / ".cache/torch")
    python = home / "venvs/train/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    _incident(home / ".local/state/stallwatch")
    return here


@pytest.fixture
def environment(tmp_path: Path, home: Path, folder: Path) -> dict[str, str]:
    """The environment of a page's commands: no state, port or program of this machine's user."""
    kept = {name: text for name, text in os.environ.items() if name != "STALLWATCH_HOME"}
    kept.pop("XDG_STATE_HOME", None)
    ports = {
        f"STALLWATCH_{name}_PORT": str(free_port()) for name in ("DASHBOARD", "EXPORTER", "JOIN", "RELAY")
    }
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**kept, **ports, "HOME": str(home), "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _logs(root: Path, here: Path) -> None:
    for name in ("bench", "tests"):
        (here / name).symlink_to(root / name)
    shutil.copytree(root / "tests/recordings/zero3-stall/ranks", here / "logs")
    healthy = root / "tests/recordings/healthy/attempt_0/0/stdout.log"
    (here / "runs").mkdir()
    for name in ("train.log", "slurm-1234.out", "slurm-8121.out", "runs/b.log"):
        shutil.copy(healthy, here / name)
    for name in ("slurm-8123.out", "runs/a.log"):
        shutil.copy(root / "tests/recordings/zero3-dummy-loss/attempt_0/0/stderr.log", here / name)
    (here / "train.py").write_text(TRAIN)
    (here / "failing.log").write_text(FAILING)


def _programs(binaries: Path, here: Path) -> None:
    binaries.mkdir()
    calls = {
        "stallwatch": f'exec "{sys.executable}" -c "from stallwatch.cli import main; main()" "$@"',
        "kubectl": f'exec cat "{here}/train.log"',
        "some-command": f'exec cat "{here}/train.log"',
    }
    for name, call in calls.items():
        (binaries / name).write_text(f"#!/bin/sh\n{call}\n")
        (binaries / name).chmod(0o700)


def _checkpoint(folder: Path) -> None:
    folder.mkdir(parents=True)
    head = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(8))


def _stacks(file: Path, host: str, group: StackGroup) -> None:
    found = StallStacks(
        1.8e9, 0.1, [group], hosts={host: spans_of(group.ranks)}, elsewhere=3 - len(group.ranks)
    )
    file.write_bytes(msgspec.json.encode(found))


def _incident(state: Path) -> None:
    now = time.time()
    incident = Incident(
        id="myrun/stall/x/1",
        run="myrun",
        kind="stall",
        rule="x",
        severity="critical",
        status="open",
        episode=1,
        opened_at=now,
        updated_at=now,
    )
    IncidentStore.at_home(state).upsert(incident)
