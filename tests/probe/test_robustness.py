"""Faults of the probe do not change the training's output and exit code; lost records are counted."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from programs import ENGINE, Programs, Ran

from stallwatch_exporter.rings.probing import Probing, with_probe


def another_python() -> str | None:
    """Return a Python 3.10, which pyenv may have outside of the path, or ``None``."""
    found = [shutil.which("python3.10"), *map(str, Path.home().glob(".pyenv/versions/3.10.*/bin/python"))]
    for python in filter(None, found):
        if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    return None


ANOTHER_PYTHON = another_python()


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def same(programs: Programs, code: str, **more: str) -> Ran:
    """Return the program's output and exit code, after a check that a run without probe has the same."""
    plain = programs.run(code, probe=False, **more)
    assert programs.run(code, **more) == plain
    return plain


SPOILED = {
    "the ring": "from stallwatch_probe import ring; ring.RingWriter.write = spoiled",
    "a phase": "from stallwatch_probe import api; api.Probe._write = spoiled; api.current().phase('eval')",
    "a value": "from stallwatch_probe import api; api.Probe._take_one = spoiled; api.Draft.take = spoiled",
    "an event": "from stallwatch_probe import events; events.EventFile.write = spoiled",
    "a sampler": (
        "from stallwatch_probe import api; p = api.current(); p.samplers = [spoiled]; p._sampled_at = 0"
    ),
    "a notice": "from stallwatch_probe.hooks import leader; leader.Leader.steps = spoiled",
}


@pytest.mark.parametrize("what", SPOILED)
def test_error_inside_the_probe_is_counted_and_silent(programs: Programs, what: str) -> None:
    code = (
        "import torch, deepspeed, sys, warnings\n"
        "def spoiled(*_, **__): raise MemoryError('in the probe')\n"
        f"if 'stallwatch_probe' in sys.modules:\n    {SPOILED[what]}\n"
    ) + ENGINE
    same(programs, code + "warnings.warn('careful')\nprint('on')\nengine.backward(-1.0)\n")
    probing = Probing(programs.rings)
    probing.read()
    assert probing.lost > 0


def test_signal_handlers_and_hooks_of_the_training_are_kept(programs: Programs) -> None:
    code = (
        "import torch, signal, sys, os\n"
        "def handler(*_): print('handled', flush=True)\n"
        "numbers = [signal.SIGTERM, signal.SIGUSR1, signal.SIGRTMIN, signal.SIGRTMAX, signal.SIGALRM]\n"
        "for number in numbers:\n"
        "    print(signal.getsignal(number)); signal.signal(number, handler)\n"
        "    os.kill(os.getpid(), number)\n"
        "def hook(kind, error, trace): print('mine', kind.__name__)\n"
        "sys.excepthook = hook\n"
    )
    ran = same(programs, code + ENGINE + "raise ValueError('out')\n")
    assert ran.out.count(b"handled") == 5 and ran.out.endswith(b"mine ValueError\n")


def test_exception_hooks_form_a_chain(programs: Programs) -> None:
    code = (
        "import torch, sys\nbefore = sys.excepthook\n"
        "def hook(*about): print('mine', flush=True); before(*about)\nsys.excepthook = hook\n"
    )
    ran = same(programs, code + ENGINE + "raise ValueError('out')\n")
    assert (ran.code, ran.out) == (1, b"mine\n") and b"ValueError: out" in ran.err
    assert [event["message"] for event in programs.events() if event["kind"] == "exception"] == ["out"]


def test_forked_workers_are_not_ranks(programs: Programs) -> None:
    code = ENGINE + (
        "import os, multiprocessing\n"
        "def work(n): print('worker', n, flush=True)\n"
        "context = multiprocessing.get_context('fork')\n"
        "for n in range(2):\n"
        "    worker = context.Process(target=work, args=(n,)); worker.start(); worker.join()\n"
        "if os.fork() == 0: os._exit(3)\n"
        "print(os.wait()[1])\n"
    )
    assert same(programs, code).out == b"worker 0\nworker 1\n768\n"
    assert len(list(programs.rings.glob("*.ring"))) == 1


def test_cleared_environment_disables_the_probe(programs: Programs) -> None:
    child = "import sys; print('stallwatch_probe' in sys.modules, sys.path[1:2] == [''])"
    code = (
        "import subprocess, sys\n"
        f"done = subprocess.run([sys.executable, '-c', {child!r}], env={{}}, capture_output=True)\n"
        "print(done.returncode, done.stdout)\n"
    )
    assert same(programs, code).out == b"0 b'False False\\n'\n"


def test_missing_folder_before_the_first_step_does_not_stop_a_rank(programs: Programs) -> None:
    gone = "import shutil, pathlib, sys\nshutil.rmtree(pathlib.Path(sys.argv[0]).parent / 'rings')\n"
    assert programs.run(gone + ENGINE + "print('on')\n") == Ran(0, b"on\n", b"")


def test_events_lost_by_a_full_disk_are_counted(programs: Programs) -> None:
    code = ENGINE + (
        "import resource, warnings\nwarnings.simplefilter('always')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "for name in 'abc': warnings.warn(name * 30)\n"
        "for _ in range(4): engine.step()\n"
    )
    ran = programs.run(code)
    assert ran.code == 0 and ran.err.count(b"UserWarning") == 3
    probing = Probing(programs.rings)
    assert probing.read()[-1].values["step"] == 4
    assert probing.lost == 4  # the fourth lost record is the rank's exit


EACH_STEP = "from stallwatch_probe import api; api.RECORD_SECONDS = 0.0\n"  # every step writes a record


def test_records_that_are_not_read_in_time_are_counted(programs: Programs) -> None:
    programs.run(ENGINE + EACH_STEP + "for _ in range(12_000): engine.step()\n")
    probing = Probing(programs.rings)
    assert probing.read()[-1].values["step"] == 6002
    assert probing.lost >= 6002 - 4096


@pytest.mark.skipif(ANOTHER_PYTHON is None, reason="there is no Python 3.10")
def test_older_python_than_that_of_stallwatch_is_watched(programs: Programs) -> None:
    program = programs.folder / "train.py"
    program.write_text(ENGINE + "import sys\nprint(sys.version_info[:2])\n")
    environ = with_probe({"PYTHONPATH": str(programs.site), "RANK": "0"}, programs.rings)
    done = subprocess.run([str(ANOTHER_PYTHON), str(program)], env=environ, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"(3, 10)\n", b"")
    assert [each.values["step"] for each in programs.steps()] == [1, 2]
