"""The probe's answer to the agent, in real processes that behave like training code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from ranks import needs

from stallwatch_exporter.probe.draft import Draft
from stallwatch_exporter.probe.ring import RingWriter
from stallwatch_exporter.probe.stacks import ANSWER, FAULT, QUERY, SIGNAL, free_signal
from stallwatch_exporter.stacks import gathering, processes, queries
from stallwatch_exporter.stacks.local_ranks import LocalRank, local_ranks
from stallwatch_rules.stacks.reading import from_faulthandler, from_probe, main_thread

EXPORTER = Path(processes.__file__).parents[2]
BEGIN = """
import os, sys, time
from pathlib import Path
from stallwatch_exporter.probe.api import Probe
probe = Probe(Path(sys.argv[1]), {"RANK": "3"})
probe.announce()
"""
END = """
def training():
    print("ready", flush=True)
    sys.stdin.read(1)
    probe.step(1)
    print("trained", flush=True)
training()
"""


class Rank:
    """A process with a probe that pauses until the test releases it."""

    def __init__(self, child: subprocess.Popen[str], folder: Path) -> None:
        self.child = child
        self.folder = folder
        self.pid = child.pid

    @property
    def ring(self) -> Path:
        return next(self.folder.glob(f"3-{self.pid}-*.ring"))

    def go_on(self) -> str:
        """Release the process, and return its output at its end."""
        out, err = self.child.communicate("x", timeout=120)
        assert self.child.returncode == 0, err
        return out


@contextmanager
def rank(folder: Path, code: str = "", end: str = END, begin: str = BEGIN) -> Iterator[Rank]:
    command = [sys.executable, "-c", begin + code + end, str(folder)]
    environ = {**os.environ, "PYTHONPATH": f"{EXPORTER}{os.pathsep}{EXPORTER.parent / 'rules'}"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n", child.stderr.read() if child.stderr else ""
            yield Rank(child, folder)
        finally:
            child.kill()


def wait_for(found: Callable[[], object]) -> object:
    until = time.monotonic() + 120
    while not (result := found()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
    return result


def functions(given: object) -> list[str]:
    main = main_thread(from_probe(given))
    assert main is not None
    return [frame.function for frame in main.frames]


def test_rank_answers_queries_and_continues_training(tmp_path: Path) -> None:
    with rank(tmp_path) as one:
        for question in ("1", "2"):
            assert queries.send(one.ring, question)
            found = wait_for(lambda question=question: queries.answer(one.ring, question))
            assert functions(found) == ["<module>", "training"]
        assert queries.answer(one.ring, "3") is None
        assert one.go_on() == "trained\n"


def test_concurrent_queries_are_both_answered(tmp_path: Path) -> None:
    """The agent and ``stallwatch stacks`` sample at once; the greater number may come first."""
    with rank(tmp_path) as one:
        assert queries.send(one.ring, "20") and queries.send(one.ring, "10")
        for question in ("10", "20"):
            answer = wait_for(lambda question=question: queries.answer(one.ring, question))
            assert functions(answer) == ["<module>", "training"]
        assert queries.answer(one.ring, "21") is None, "it was taken before"
        assert one.go_on() == "trained\n"


def test_faulthandler_answers_if_the_thread_cannot(tmp_path: Path) -> None:
    with rank(tmp_path) as one:
        dump = queries.FaultDump(one.ring, one.pid)
        assert dump.sent
        text = wait_for(dump.text)
        assert isinstance(text, str)
        main = main_thread(from_faulthandler(text))
        assert main is not None and [frame.function for frame in main.frames] == ["<module>", "training"]
        assert one.go_on() == "trained\n", "the call that the signal interrupted was restarted"


LOOP = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4))
def training():
    print("ready", flush=True)
    for line in sys.stdin:
        exec(line)
        print(type(vars(nn.Module)["__call__"]).__name__, flush=True)
training()
"""
FORWARD = "model(torch.ones(4))"


def does(one: Rank, line: str) -> str:
    """Run a line in the process while module calls are watched; return its output."""
    assert one.child.stdin is not None and one.child.stdout is not None
    one.child.stdin.write(f"{line}\n")
    one.child.stdin.flush()
    return one.child.stdout.readline().strip()


def sampled(one: Rank, token: str) -> dict[str, Any]:
    """Return the process's answer to a request."""
    assert queries.send(one.ring, token)
    found = wait_for(lambda: queries.answer(one.ring, token))
    assert isinstance(found, dict) and functions(found)[:2] == ["<module>", "training"]
    return found


class TestForwardPasses:
    pytestmark = needs("torch")

    def test_forward_passes_are_counted_from_a_question_until_the_next_step(self, tmp_path: Path) -> None:
        with rank(tmp_path, end=LOOP) as one:
            assert does(one, f"probe.step(); {FORWARD}") == "function"
            assert sampled(one, "1")["counters"] == {"phase": "train", "steps": 1, "forwards": 0}
            assert does(one, FORWARD) == "_CountedCall"
            found = sampled(one, "2")
            assert found["counters"]["forwards"] == 2  # forward passes of the model and of its layer
            assert [thread["main"] for thread in found["threads"]] == [True]
            assert does(one, "probe.step()") == "function"
            assert sampled(one, "3")["counters"]["forwards"] == 2

    def test_counting_of_forward_passes_has_a_time_limit(self, tmp_path: Path) -> None:
        code = "import stallwatch_exporter.probe.forward_passes as passes; passes.MOST_SECONDS = 0.01\n"
        with rank(tmp_path, code, end=LOOP) as one:
            sampled(one, "1")
            wait_for(lambda: does(one, FORWARD) == "function")

    def test_compiled_modules_are_not_instrumented(self, tmp_path: Path) -> None:
        compiles = "torch.compile(model, backend='eager')(torch.ones(4))"
        with rank(tmp_path, end=LOOP) as one:
            assert does(one, compiles) == "function"
            assert "forwards" not in sampled(one, "1")["counters"]
            assert does(one, FORWARD) == "function"

    def test_collectives_are_counted_over_all_groups(self, tmp_path: Path) -> None:
        code = """
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
for group in (None, dist.new_group([0])):
    dist.all_reduce(torch.ones(1), group=group)
"""
        with rank(tmp_path, "import torch" + code, end=LOOP) as one:
            assert sampled(one, "1")["counters"]["collectives"] == 2

    def test_rank_that_waits_for_a_data_loader_names_the_workers(self, tmp_path: Path) -> None:
        code = """
import torch
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, _):
        Path(sys.argv[1], str(os.getpid())).touch(); time.sleep(600)
def training():
    print("ready", flush=True)
    list(torch.utils.data.DataLoader(Slow(), num_workers=1))
training()
"""
        with rank(tmp_path, end=code) as one:
            worker = wait_for(lambda: [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()])
            wait_for(lambda: sampled(one, str(time.time_ns())).get("workers") == worker)
            assert isinstance(worker, list)
            os.kill(worker[0], signal.SIGKILL)


FORK = """
child = os.fork()
if child == 0:
    time.sleep(600)
Path(sys.argv[1], "child").write_text(str(child))
"""


def test_rank_with_a_forked_worker_still_answers(tmp_path: Path) -> None:
    with rank(tmp_path, FORK) as one:
        child = psutil.Process(int((tmp_path / "child").read_text()))
        try:
            assert child.num_threads() == 1 and psutil.Process(one.pid).num_threads() == 2
            assert queries.send(one.ring, "1")
            found = wait_for(lambda: queries.answer(one.ring, "1"))
            assert isinstance(found, dict) and found["pid"] == one.pid
        finally:
            child.kill()
        assert one.go_on() == "trained\n"


def test_forked_rank_gets_its_own_pipe(tmp_path: Path) -> None:
    code = """
import stallwatch_exporter.probe.api as api
os.register_at_fork(after_in_child=probe.forked)
if os.fork():
    os.wait()
    sys.exit()
probe.announce()
Path(sys.argv[1], "child").write_text(str(os.getpid()))
"""
    with rank(tmp_path, code) as parent:
        pid = int((tmp_path / "child").read_text())
        ring = next(tmp_path.glob(f"3-{pid}-*.ring"))
        assert queries.send(ring, "1")
        found = wait_for(lambda: queries.answer(ring, "1"))
        assert isinstance(found, dict) and found["pid"] == pid != parent.pid
        assert queries.FaultDump(ring, pid).sent
        assert parent.go_on() == "trained\n"


def test_program_that_replaced_a_rank_gets_no_signal(tmp_path: Path) -> None:
    """After ``exec`` there is no handler, so the signal would end the program."""
    program = "print('ready', flush=True); import sys; sys.stdin.read(1); print('trained', flush=True)"
    with rank(tmp_path, end=f"os.execv(sys.executable, [sys.executable, '-c', {program!r}])") as one:
        assert not queries.send(one.ring, "1")
        assert not queries.FaultDump(one.ring, one.pid).sent
        assert one.go_on() == "trained\n"


HANDLERS = """
import signal
def handler(*_):
    print("handled", flush=True)
for number in range(signal.SIGRTMIN, signal.SIGRTMAX):
    signal.signal(number, handler)
probe._sampled_at = 0.0  # as after a second
probe.announce()
"""


def test_signal_used_by_the_training_is_not_sent(tmp_path: Path) -> None:
    with rank(tmp_path, HANDLERS) as one:
        assert not one.ring.with_suffix(SIGNAL).exists()
        assert not queries.FaultDump(one.ring, one.pid).sent
        assert queries.send(one.ring, "1") and wait_for(lambda: queries.answer(one.ring, "1"))
        assert one.go_on() == "trained\n"


CLOSED = """
os.closerange(3, 256)
files = [open(Path(sys.argv[1], f"own{n}"), "w+b", buffering=0) for n in range(20)]
"""


def test_reused_descriptors_are_not_touched(tmp_path: Path) -> None:
    with rank(tmp_path, CLOSED) as one:
        assert not queries.FaultDump(one.ring, one.pid).sent
        queries.send(one.ring, "1")  # the pending read ends; the next read would use another file
        assert one.go_on() == "trained\n"
        assert all(path.read_bytes() == b"" for path in tmp_path.glob("own*"))


def test_missing_pipe_is_counted(tmp_path: Path) -> None:
    code = "os.mkfifo = None\n"
    begin = BEGIN.replace("probe.announce()", code + "probe.announce()")
    command = [sys.executable, "-c", begin + "print(probe._faults)", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": f"{EXPORTER}{os.pathsep}{EXPORTER.parent / 'rules'}"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_highest_free_signal_is_used() -> None:
    taken = free_signal()
    assert taken is not None
    before = signal.signal(taken, signal.SIG_IGN)
    try:
        assert free_signal() == taken - 1
    finally:
        signal.signal(taken, before)


def test_files_next_to_the_ring_are_private(tmp_path: Path) -> None:
    with rank(tmp_path) as one:
        for suffix in (QUERY, FAULT, SIGNAL):
            assert one.ring.with_suffix(suffix).stat().st_mode & 0o077 == 0
        assert queries.send(one.ring, "1") and wait_for(lambda: queries.answer(one.ring, "1"))
        assert one.ring.with_suffix(ANSWER).stat().st_mode & 0o077 == 0


# ---------------------------------------------------------------- the agent's side, of the same processes


def test_newest_process_of_a_rank_is_used(tmp_path: Path) -> None:
    with rank(tmp_path) as gone:
        assert [each.pid for each in local_ranks(tmp_path, None)] == [gone.pid]
        gone.go_on()
    assert local_ranks(tmp_path, None) == [], "where all have ended nobody waits"
    with rank(tmp_path) as alive:
        assert [(each.pid, each.ended) for each in local_ranks(tmp_path, None)] == [(alive.pid, False)]


def test_rank_without_a_pipe_is_queried_by_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "find_py_spy", lambda: None)
    begin = BEGIN.replace("probe.announce()", "os.mkfifo = None; probe.announce()")
    with rank(tmp_path, begin=begin) as one:
        (asked,) = gathering.gather([LocalRank(3, one.pid, 0.0, one.ring)])
        assert (asked.origin, asked.locked_out) == ("signal", False)
        assert one.go_on() == "trained\n"


def test_ranks_of_an_ended_attempt_are_not_expected(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    began = time.time() - 100
    ring = RingWriter(tmp_path / f"0-{ended.pid}-{int(began * 1e9)}.ring", Draft(), 0)
    ring.write(began + 50)
    with rank(tmp_path) as one:
        assert [(each.rank, each.ended) for each in local_ranks(tmp_path, None)] == [(3, False)]
        ring.write(time.time())  # the process outlived the other one, and ended
        assert [(each.rank, each.ended) for each in local_ranks(tmp_path, None)] == [(0, True), (3, False)]
        one.go_on()


WORKER = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, "RANK": "3"})
"""


def test_ranks_without_a_probe_are_found_by_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that inherited its rank from another rank is a worker of that rank."""
    monkeypatch.setenv("RANK", "5")
    bare = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with rank(tmp_path, WORKER) as one:
            found = local_ranks(tmp_path, os.getpid())
            assert [(each.rank, each.pid) for each in found] == [(3, one.pid), (5, bare.pid)]
            for child in psutil.Process(one.pid).children():
                child.kill()
            one.go_on()
    finally:
        bare.kill()
        bare.wait()


def test_launcher_with_a_rank_variable_is_not_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    launcher = tmp_path / "torchrun"
    launcher.write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-u", str(launcher)], stdout=subprocess.PIPE) as launched:
        assert launched.stdout is not None
        worker = int(launched.stdout.readline())
        try:
            assert [(each.rank, each.pid) for each in local_ranks(None, os.getpid())] == [(0, worker)]
        finally:
            psutil.Process(worker).kill()


@pytest.mark.parametrize("stop", [False, True])
def test_stopped_rank_is_reported_and_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    if not stop:  # time for an answer on a busy machine
        monkeypatch.setattr(gathering, "ANSWER_SECONDS", 30.0)
    with rank(tmp_path) as one:
        if stop:
            os.kill(one.pid, signal.SIGSTOP)
            wait_for(lambda: processes.condition(one.pid) == "stopped")
        (asked,) = gathering.gather([LocalRank(3, one.pid, 0.0, one.ring)])
        assert asked.condition == ("stopped" if stop else "alive")
        assert asked.origin in (("", "py-spy") if stop else ("probe",))
        if stop:
            os.kill(one.pid, signal.SIGCONT)
        assert one.go_on() == "trained\n"
