"""Stack samples before the alarm: ranks that answer late, never, or with invalid data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.probe.draft import Draft
from stallwatch_exporter.probe.ring import RingWriter
from stallwatch_exporter.probe.stacks import ANSWER, QUERY
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stacks import evidence, gathering, local_ranks
from stallwatch_exporter.stacks.local_ranks import LocalRank
from stallwatch_exporter.watching.agent import Agent
from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.stacks.concluding import with_stacks
from stallwatch_rules.stacks.records import RankAnswer
from stallwatch_rules.stacks.sentences import sentence


class Watched:
    """A run of one rank, this process, whose answers the test controls."""

    def __init__(self, tmp_path: Path, catalogue: Catalogue, on_stall: str = "report") -> None:
        self.rings = tmp_path / "rings"
        self.rings.mkdir()
        self.ring = RingWriter(self.rings / f"0-{os.getpid()}-{time.time_ns()}.ring", Draft(), 0)
        os.mkfifo(self.ring.path.with_suffix(QUERY))
        self.pipe = os.open(self.ring.path.with_suffix(QUERY), os.O_RDWR | os.O_NONBLOCK)
        self.sent: list[Incident] = []
        self.notices: list[str] = []
        settings = ExporterSettings(home=tmp_path / "home", stall_start_seconds=10.0, on_stall=on_stall)
        self.folder = RunFolder.create("sft", ["python", "sft.py"], home=tmp_path / "home")
        self.now = self.folder.info.started_at
        self.agent = Agent(
            self.folder,
            settings,
            catalogue,
            [self.sent.append],
            clock=lambda: self.now,
            notice=self.notices.append,
            probing=Probing(self.rings),
        )

    def close(self) -> None:
        os.close(self.pipe)

    def stand(self, seconds: float) -> None:
        """Let `seconds` pass without a step."""
        self.now += seconds
        self.agent.tick(self.now)

    def question(self) -> str:
        """Return the request that the rank received."""
        asked = self.until(self._read)
        assert isinstance(asked, bytes)
        return asked.decode().strip()

    def _read(self) -> bytes:
        try:
            return os.read(self.pipe, 64)
        except BlockingIOError:
            return b""

    def answer(self, question: str, threads: object) -> None:
        found = {"asked": question, "threads": threads}
        self.ring.path.with_suffix(ANSWER).write_text(json.dumps(found))

    def until(self, done: Callable[[], object]) -> object:
        end = time.monotonic() + 120
        while not (result := done()):
            assert time.monotonic() < end, f"waited in vain: {self.notices}"
            time.sleep(0.01)
        return result

    def looked(self) -> bool:
        """Check the clock without a pause; return True if a stall with stacks was reported."""
        self.agent.tick(self.now)
        return bool(self.sent and self.sent[-1].stacks)


@pytest.fixture
def watched(tmp_path: Path, catalogue: Catalogue) -> Watched:
    return Watched(tmp_path, catalogue)


THREADS = [{"name": "MainThread", "main": True, "frames": [["/w/sft.py", 7, "main", "__main__"]]}]


def test_stall_opens_once_with_the_response_of_its_rank(watched: Watched) -> None:
    watched.stand(3600.0)
    assert watched.sent == []
    watched.answer(watched.question(), THREADS)
    watched.until(watched.looked)
    (stall,) = watched.sent
    assert stall.kind == "stall" and stall.stacks is not None
    assert render(sentence(stall.stacks)) == "Rank 0 is at sft.py:7 in main."
    assert "/w/sft.py:7 in main" in (watched.folder.path / stall.stacks.file).read_text()
    (kept,) = (watched.folder.path / "incidents.jsonl").read_text().splitlines()
    assert json.loads(kept)["stacks"]["groups"]
    watched.close()


def test_stall_waits_at_most_two_seconds_for_a_response(watched: Watched) -> None:
    watched.stand(3600.0)
    question = watched.question()
    watched.stand(1.9)
    assert watched.sent == []
    watched.stand(0.1)
    (stall,) = watched.sent
    assert stall.kind == "stall" and stall.stacks is None
    watched.answer(question, THREADS)
    watched.until(watched.looked)
    assert watched.sent[-1].id == stall.id
    watched.close()


def test_post_mortem_of_the_run_folder_names_the_rank(watched: Watched, catalogue: Catalogue) -> None:
    watched.agent.feed(Chunk("stdout", b"step 1/10 loss 1.0\nstep 2/10 loss 0.9\n", watched.now))
    watched.stand(3600.0)
    watched.answer(watched.question(), THREADS)
    watched.until(watched.looked)
    watched.agent.end(Ending(kind="killed", exit_code=137, signal="SIGKILL"), watched.now)
    found, problems = rendered(diagnose_paths([watched.folder.path], Options(catalogue)))
    assert found.digest[0] == "Rank 0 is at sft.py:7 in main." and problems == []
    assert found.stats.files == 1, "the stacks are no log"
    watched.close()


def test_responses_after_the_end_of_a_stall_are_dropped(watched: Watched) -> None:
    watched.stand(3600.0)
    question = watched.question()
    watched.stand(2.0)
    watched.agent.feed(Chunk("stdout", b"step 1/10 loss 1.0\n", watched.now + 1))
    watched.stand(2.0)
    assert watched.sent[-1].status == "resolved"
    watched.answer(question, THREADS)
    watched.until(lambda: not [item for item in threading.enumerate() if item.name == "stallwatch stacks"])
    watched.stand(1.0)
    assert all(item.stacks is None for item in watched.sent)
    watched.close()


def test_secrets_on_a_stack_are_masked(watched: Watched) -> None:
    secret = "hf_" + "Ab3dEf6hIj" * 3 + "Qr5t"
    watched.stand(3600.0)
    watched.answer(watched.question(), [{"main": True, "frames": [[f"/w/{secret}.py", 1, "f", ""]]}])
    watched.until(watched.looked)
    stacks = watched.sent[-1].stacks
    assert stacks is not None
    assert secret not in repr(watched.sent[-1]) + (watched.folder.path / stacks.file).read_text()
    watched.close()


def test_reaction_runs_after_the_stacks_arrived(tmp_path: Path, catalogue: Catalogue) -> None:
    watched = Watched(
        tmp_path, catalogue, on_stall=f"command cat > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/got"
    )
    watched.stand(3600.0)
    watched.answer(watched.question(), THREADS)
    watched.until(watched.looked)
    watched.until((tmp_path / "got").exists)
    assert json.loads((tmp_path / "got").read_text())["stacks"]["groups"][0]["place"] == "sft.py:7 in main"
    watched.close()


def test_diagnosis_names_the_odd_rank(watched: Watched) -> None:
    from stallwatch_rules.records import Diagnosis
    from stallwatch_rules.stacks.records import StackGroup, StallStacks

    watched.stand(3600.0)
    watched.stand(2.0)
    primary = watched.sent[0].primary
    stacks = StallStacks(1.0, 0.1, [StackGroup([2], "code", place="sft.py:7 in main")], [2], "elsewhere")
    known = load_catalogue()
    found = with_stacks(Diagnosis("stalled", primary=primary, digest=["rank 0: slow"]), stacks, known)
    assert [render(line) for line in found.digest] == ["Rank 2 is at sft.py:7 in main.", "rank 0: slow"]
    assert found.primary is not None and found.primary.rank == 2
    assert found.primary.evidence[0] == found.digest[0]
    assert with_stacks(found, stacks, known).digest == found.digest, "reported once"
    watched.close()


def test_hanging_query_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, now = threading.Event(), [0.0]
    monkeypatch.setattr(evidence, "local_ranks", lambda *_: stuck.wait() and [])
    notices: list[str] = []
    asking = evidence.Evidence(tmp_path, None, "sft", notices.append, clock=lambda: now[0])
    asking.look()
    assert asking.take() is None and asking.under_way
    now[0] = evidence.PATIENCE_SECONDS
    assert asking.take() == evidence.LookResult([])
    assert len(notices) == 1 and asking.take() is None and not asking.under_way
    stuck.set()


def test_failed_query_has_a_reason(tmp_path: Path) -> None:
    notices: list[str] = []
    asking = evidence.Evidence(tmp_path, None, "plain", notices.append)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as plain:
        asking.command = plain.pid
        asking.look()
        end = time.monotonic() + 120
        while (found := asking.take()) is None and time.monotonic() < end:
            time.sleep(0.01)
        assert found == evidence.LookResult([], unanswered=evidence.NO_RANK)
        plain.communicate()
    assert notices == []


@pytest.mark.parametrize(("programs", "names_it"), [(1, True), (2, False)])
def test_only_program_of_a_command_counts_as_rank_0(programs: int, names_it: bool) -> None:
    program = "import subprocess, sys; own = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1);"
    program += "print(1, flush=True); own.wait()"
    shell = ["sh", "-c", '"$0" -c "$1" & ' * programs + "wait", sys.executable, program]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True) as command:
        assert command.stdout is not None and all(command.stdout.readline() for _ in range(programs))
        outermost = [child.pid for child in psutil.Process(command.pid).children()]
        found = [(item.rank, item.pid) for item in local_ranks.sole_program(command.pid)]
        os.killpg(command.pid, signal.SIGKILL)
    assert found == ([(0, outermost[0])] if names_it else [])
    assert local_ranks.sole_program(command.pid) == []


@pytest.mark.parametrize(("answers", "expected"), [(False, ("signal", True)), (True, ("probe", False))])
def test_late_response_means_that_the_rank_was_not_locked_out(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, answers: bool, expected: tuple[str, bool]
) -> None:
    rank = LocalRank(0, os.getpid(), 0.0, watched.ring.path)

    def dump(pairs: list[tuple[LocalRank, RankAnswer]]) -> None:
        for _, record in pairs:
            record.origin = "signal"
        if answers:
            answer = {"asked": str(time.monotonic_ns()), "threads": []}
            watched.ring.path.with_suffix(ANSWER).write_text(json.dumps(answer))

    monkeypatch.setattr(gathering, "_by_signal", dump)
    monkeypatch.setattr(gathering, "ANSWER_SECONDS", 0.1)
    (found,) = gathering.gather([rank])
    assert (found.origin, found.locked_out) == expected


@pytest.mark.parametrize(
    ("program", "named", "alone"),
    [
        ("print(1, flush=True); input()", {}, True),
        ("print(1, flush=True); input()", {"WORLD_SIZE": "2"}, False),
        (
            "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1);"
            "print(1, flush=True); input(); child.kill(); child.wait()",
            {},
            False,
        ),
    ],
)
def test_command_without_children_is_a_single_process(
    program: str, named: dict[str, str], alone: bool
) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in local_ranks._LAUNCHED} | named
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as command:
        assert command.stdout is not None and command.stdout.readline()
        assert local_ranks.is_alone(None, command.pid) is alone
        command.communicate(b"\n")
    assert not local_ranks.is_alone(None, command.pid)


_PYTHON = [sys.executable, "-c", "import sys; sys.stdin.read()"]
_REMOTE = ["sh", "-c", "read line"]  # stands for ssh, pdsh and mpirun, which run ranks on other nodes


def _starting(path: Path, child: list[str]) -> Path:
    """Return a program that may have one child, and prints when the child runs."""
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, subprocess, sys\n"
        f"child = {child} and subprocess.Popen({child}, stdin=-1, env={{**os.environ, 'RANK': '0'}})\n"
        "print(1, flush=True)\n"
        "input()\n"
        "child and child.communicate()\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "child", "waits"),
    [
        ("torchrun", [], True),
        ("train.py", [], False),
        ("torchrun", _PYTHON, False),
        ("deepspeed", _REMOTE, False),
    ],
)
def test_launcher_without_children_has_started_no_rank(
    tmp_path: Path, name: str, child: list[str], waits: bool
) -> None:
    script = _starting(tmp_path / name, child)
    with subprocess.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None and command.stdout.readline()
        assert local_ranks.is_launching(None, command.pid) is waits
        command.communicate(b"\n")
    assert not local_ranks.is_launching(None, command.pid)


@pytest.mark.parametrize(("output", "why"), [(b"", "NO_RANK_YET"), (b"step 1/10 loss 1.0\n", "NO_RANK")])
def test_run_with_steps_had_ranks(tmp_path: Path, catalogue: Catalogue, output: bytes, why: str) -> None:
    folder = RunFolder.create("sft", ["torchrun", "sft.py"], home=tmp_path / "home")
    now, notices = folder.info.started_at, list[str]()
    settings = ExporterSettings(home=tmp_path / "home", stall_start_seconds=10.0)
    agent = Agent(folder, settings, catalogue, [], clock=lambda: now, notice=notices.append)
    script = _starting(tmp_path / "torchrun", [])
    with subprocess.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None and command.stdout.readline()
        agent.response.watch(command.pid)
        agent.feed(Chunk("stdout", output, now))
        now += 7200.0
        end = time.monotonic() + 120
        while not notices and time.monotonic() < end:
            agent.tick(now)
            time.sleep(0.01)
        command.communicate(b"\n")
    assert notices == [getattr(evidence, why)]


def test_rank_that_reported_its_end_counts_as_ended(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(gathering, "find_py_spy", lambda: None)
    (rank,) = local_ranks.local_ranks(watched.rings, None)
    (silent,) = gathering.gather([rank])
    assert silent.condition == "alive", "it said nothing"
    messages = [{"kind": "left", "error": False}, {"kind": "warning"}, {"kind": "left", "error": False}]
    for events, condition in ((messages[:2], "alive"), (messages, "ended")):
        lines = [json.dumps(event) + "\n" for event in events]
        watched.ring.path.with_suffix(".jsonl").write_text("".join(lines))
        (silent,) = gathering.gather([rank])
        assert silent.condition == condition
