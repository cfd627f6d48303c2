"""Run small trainings with real libraries as one rank with a probe, and return the probe's records."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from stallwatch_exporter.probe.layout import PHASES
from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.rings.reader import Record, RingReader

#: A model of a few hundred weights, and data for it.
TINY = """
import sys, torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return {"input_ids": torch.arange(8) % 16, "labels": torch.arange(8) % 16}
model = LlamaForCausalLM(LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8,
    num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1))
def trainer(folder, callbacks=(), **more):
    args = TrainingArguments(folder, max_steps=4, eval_strategy="steps", eval_steps=2, save_steps=2,
        logging_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True, **more)
    return Trainer(model=model, args=args, train_dataset=Data(), eval_dataset=Data(),
        callbacks=list(callbacks))
"""


def needs(*packages: str) -> list[pytest.MarkDecorator]:
    """Return marks for tests that train with these packages."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return [
        pytest.mark.repro,
        pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed"),
    ]


class Ranks:
    """Programs as rank 0 of 1, with the rings of their probes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rings = folder / "rings"
        self.rings.mkdir()

    def run(
        self, code: str, *, probe: bool = True, environ: Mapping[str, str] = os.environ, **variables: str
    ) -> str:
        """Run `code`, which must succeed, and return its stdout."""
        program = self.folder / "train.py"
        program.write_text(code)
        one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        # The store of a single rank may use any free port.
        environ = {**environ, **one, "MASTER_PORT": "0", "OMP_NUM_THREADS": "1", **variables}
        environ = with_probe(environ, self.rings) if probe else environ
        command = [sys.executable, str(program), str(self.folder / "out")]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=170)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def records(self) -> list[Record]:
        """Return the records of the rank."""
        (path,) = self.rings.glob("*.ring")
        reader = RingReader(path)
        found = reader.read().records
        assert (reader.faults, reader.dropped_records) == (0, 0)
        return found

    def phases(self) -> list[str]:
        """Return the phases of the rank in order, and "step 3" for steps."""
        messages = []
        for record in self.records():
            if "step" in record.values:
                messages.append(f"step {record.values['step']:.0f}")
            elif "phase" in record.values:
                messages.append(PHASES[int(record.values["phase"])])
        return [name for name, _ in groupby(messages)]


@dataclass(frozen=True)
class Program:
    """Program that a test runs as a rank."""

    code: str
    probe: bool = True
    port: str = ""  #: port of the program's own metrics


@dataclass(frozen=True)
class Trained:
    """Outcome of a program: all its records, and its output."""

    ranks: Ranks
    printed: str


def trains(*programs: Program | str) -> pytest.MarkDecorator:
    """Mark a test that takes the outcomes of these programs as `trained`."""
    wanted = tuple(each if isinstance(each, Program) else Program(each) for each in programs)
    return pytest.mark.parametrize("trained", [wanted], indirect=True, ids=["trained"])


class Trainings:
    """Runner of many tests' programs, two at a time: each uses one thread, and takes seconds to start."""

    def __init__(self, folder: Path, wanted: Iterable[tuple[Program, ...]]) -> None:
        # The processor count is not used: it does not show a container's quota, and each program has a time
        # limit.
        self._pool = ThreadPoolExecutor(2)
        self._environ = dict(os.environ)  # copied now, because tests change the environment
        self._folder, self._numbers = folder, itertools.count()
        self._begun: dict[Program, Future[Trained]] = {}
        for program in dict.fromkeys(program for programs in wanted for program in programs):
            self._begun[program] = self._pool.submit(self._run, program)

    def again(self, programs: Iterable[Program]) -> None:
        """Run the programs again at once, whatever their first outcome."""
        for program in dict.fromkeys(programs):
            trained: Future[Trained] = Future()
            trained.set_result(self._run(program))
            self._begun[program] = trained

    def outcome(self, program: Program) -> Trained:
        """Return the outcome of a program; raise the exception of its run."""
        return self._begun[program].result()

    def close(self) -> None:
        """Start no further programs."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, program: Program) -> Trained:
        place = self._folder / str(next(self._numbers))
        place.mkdir()
        ranks = Ranks(place)
        more = {"STALLWATCH_EXPORTER_PORT": program.port} if program.port else {}
        printed = ranks.run(program.code, probe=program.probe, environ=self._environ, **more)
        return Trained(ranks, printed)
