"""A command that is one Python program without torch and RANK: its stack is sampled like that of rank 0."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stallwatch_exporter.probe.plain import is_replay
from stallwatch_exporter.probe.stacks import FAULT, QUERY, SIGNAL
from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.stacks import gathering, queries
from stallwatch_exporter.stacks.local_ranks import local_ranks
from stallwatch_rules.stacks.reading import from_faulthandler, main_thread

LOOP = """
import os, sys, threading
def train():
    print("ready", flush=True)
    return sys.stdin.readline()
where = train()
print(where, threading.active_count(), os.open("/dev/null", os.O_RDONLY), flush=True)
"""
EXEC = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {LOOP!r}])"
IN_A_SHELL = ("sh", "-c", '"$@"; exit $?', "sh")
TURNS_OUT = "from stallwatch_probe.api import current\ncurrent().announce()\n"


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    """Return a folder named after its process, as the agent's folder is."""
    folder = tmp_path / f"{os.getpid()}-1"
    folder.mkdir()
    return folder


@contextmanager
def program(rings: Path, code: str = LOOP, *around: str) -> Iterator[subprocess.Popen[str]]:
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    command = [*around, sys.executable, "-W", "error", "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=with_probe(environ, rings)
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


@pytest.mark.parametrize("around", [(), IN_A_SHELL], ids=["alone", "in-a-shell"])
def test_program_answers_a_signal_without_py_spy_and_continues(
    rings: Path, around: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "find_py_spy", lambda: None)
    with program(rings, LOOP, *around) as child:
        (alone,) = local_ranks(rings, child.pid)
        assert alone.rank == 0
        (untouched,) = gathering.gather([alone], interrupt=False)
        assert untouched.origin == ""
        (found,) = gathering.gather([alone])
        main = main_thread(found.threads)
        assert found.origin == "signal" and main is not None
        assert [frame.function for frame in main.frames] == ["<module>", "train"]
        out, _ = child.communicate("on\n", timeout=120)
        assert out == "on\n 1 3\n", "no thread of ours, and no descriptor that may mean something"
        assert child.returncode == 0
    assert list(rings.iterdir()) == []


def test_program_that_becomes_a_rank_keeps_the_signal(rings: Path) -> None:
    with program(rings, TURNS_OUT + LOOP):
        (rank,) = local_ranks(rings, None)
        assert rank.ring is not None and rank.ring.exists() and rank.ring.with_suffix(QUERY).exists()
        assert len(list(rings.glob(f"*{SIGNAL}"))) == len(list(rings.glob(f"*{FAULT}"))) == 1
        dump = queries.FaultDump(rank.ring, rank.pid)
        assert dump.sent
        gathering.wait_for([dump], lambda item: item.text() is not None, 30.0)
        assert main_thread(from_faulthandler(dump.text() or "")) is not None


def test_replacing_program_is_queried(rings: Path) -> None:
    with program(rings, EXEC) as child:
        assert len(list(rings.glob(f"*{SIGNAL}"))) == 2
        (alone,) = local_ranks(rings, child.pid)
        (found,) = gathering.gather([alone])
        main = main_thread(found.threads)
        assert main is not None and main.frames[-1].function == "train"


def test_several_matching_programs_are_ambiguous(rings: Path) -> None:
    with ExitStack() as both:
        both.enter_context(program(rings))
        assert len(local_ranks(rings, None)) == 1
        both.enter_context(program(rings))
        assert local_ranks(rings, None) == []


@pytest.mark.parametrize(("shells", "asked"), [(3, 1), (4, 0)])
def test_distant_descendant_is_not_queried(rings: Path, shells: int, asked: int) -> None:
    with program(rings, LOOP, *(IN_A_SHELL * shells)) as child:
        assert len(list(rings.glob(f"*{SIGNAL}"))) == asked
        child.communicate("on\n", timeout=120)


def test_program_of_another_agent_is_not_queried(tmp_path: Path) -> None:
    """The folder's name contains the id of no parent process."""
    rings = tmp_path / f"{2**22 + 1}-1"
    rings.mkdir()
    with program(rings):
        assert list(rings.iterdir()) == []


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK"])
def test_program_with_a_rank_is_not_queried(rings: Path, variable: str) -> None:
    with program(rings, LOOP, "env", f"{variable}=0"):
        assert list(rings.glob(f"*{SIGNAL}")) == []


def test_own_replay_is_not_queried(rings: Path, tmp_path: Path) -> None:
    """A replay is not the recorded run, so its own stack is no evidence."""
    environ = with_probe({**os.environ}, rings)
    for name, word, asked in (("stallwatch", "replay", 0), ("train.py", "replay", 1)):
        script = tmp_path / name
        script.write_text(LOOP)
        with subprocess.Popen(
            [sys.executable, str(script), word], stdin=-1, stdout=subprocess.PIPE, text=True, env=environ
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            assert len(list(rings.glob(f"*{SIGNAL}"))) == asked
            child.communicate("on\n", timeout=120)


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["stallwatch", "replay", "run"], True),
        (["/opt/venv/bin/python", "-u", "/opt/venv/bin/stallwatch", "replay", "run"], True),
        (["python", "/home/me/stallwatch"], False),
        (["python", "/home/me/stallwatch", "train"], False),
        (["python", "train.py", "stallwatch"], False),
        (["python", "train.py", "--name", "stallwatch", "replay"], False),
    ],
)
def test_training_named_replay_is_not_a_replay(words: list[str], ours: bool) -> None:
    assert is_replay(words) is ours
