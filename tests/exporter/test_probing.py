"""The agent with probes in the ranks: their steps count, and the log still provides phases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.draft import Draft
from stallwatch_exporter.probe.layout import CAPACITY, FIELDS, Header, pack_header, record_struct
from stallwatch_exporter.probe.ring import RingWriter
from stallwatch_exporter.rings.probing import BOOTSTRAP, Probing, make_folder, with_probe


def test_silent_run_shows_its_steps(probed: Any) -> None:
    run, probes = probed
    run.train(probes, 10)
    assert run.metric("stallwatch_step") == run.metric("stallwatch_steps_total") == 10
    assert run.metric("stallwatch_rank_step{rank=1}") == 10
    assert run.metric("stallwatch_loss{rank=0}") == 0.5
    assert run.metric("stallwatch_step_duration_seconds_count") == 9
    assert run.kept("agent.json")["state"] == "training"


def test_silent_run_stalls_and_recovers(probed: Any) -> None:
    run, probes = probed
    run.train(probes, 10)
    run.wait(40)
    assert [(change[0].partition("/")[0], change[1]) for change in run.changes] == [("stall", "open")]
    assert run.sent[0].step == 10
    run.train(probes, 1)
    assert run.changes[-1][1:] == ("resolved", "recovered")


def test_steps_of_ranks_replace_those_of_the_log(probed: Any) -> None:
    """The log counts micro-batches, and the ranks count optimizer steps."""
    run, probes = probed
    run.say("step 4/4000 loss 3.0")
    for step in range(1, 6):
        run.train(probes, 1)
        run.say(f"step {8 * step}/4000 loss 3.0")
    run.wait(1.0)
    assert run.metric("stallwatch_step") == 5
    assert run.metric("stallwatch_loss{rank=0}") == 0.5


def test_evaluation_known_only_from_the_log_is_not_a_stall(probed: Any) -> None:
    run, probes = probed
    run.train(probes, 10)
    run.say("***** Running Evaluation *****")
    run.wait(600)
    assert run.metric("stallwatch_phase{stallwatch_phase=eval}") == 1
    assert run.changes == []
    run.train(probes, 1)
    assert run.metric("stallwatch_phase{stallwatch_phase=train}") == 1


def test_reported_phase_lasts_until_the_next_step(probed: Any) -> None:
    run, probes = probed
    run.train(probes, 10)
    probes[0].phase("save")
    run.wait(600)
    assert run.metric("stallwatch_phase{stallwatch_phase=save}") == 1
    assert run.changes == []
    run.train(probes, 1)
    assert run.metric("stallwatch_phase{stallwatch_phase=train}") == 1


def test_ranks_restarted_from_a_checkpoint_continue_counting(probed: Any, tmp_path: Path) -> None:
    run, probes = probed
    run.train(probes, 30)
    again = Probe(tmp_path / "rings", {"RANK": "0"}, lambda: run.now)
    again.steps = 10.0
    run.train([again], 3)
    assert run.metric("stallwatch_step") == 13
    assert run.metric("stallwatch_steps_total") == 32  # the first step after the restart shows its place


def test_log_is_the_source_without_a_probe(probed: Any) -> None:
    run, _ = probed
    run.steps(1, 5)
    assert run.metric("stallwatch_step") == 5


def test_unread_records_are_counted(probed: Any) -> None:
    run, probes = probed
    probes[0].step()
    run.wait(1.0)
    for _ in range(5000):
        probes[0].due_at = 0.0  # each step writes a record
        probes[0].step()
    run.wait(1.0)
    assert run.metric("stallwatch_dropped_records_total") == 5000 - 4095
    assert run.metric("stallwatch_step") == 5001


def test_texts_of_ranks_are_stored_without_secrets(probed: Any) -> None:
    run, probes = probed
    probes[1].event("exception", message="no access with hf_" + "a1B2" * 9)
    probes[1].step()
    run.wait(1.0)
    (line,) = (run.folder.path / "events.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert (event["rank"], event["kind"]) == (1, "exception")
    assert "a1B2" not in line


@pytest.mark.parametrize(
    ("about", "secret"),
    [
        ({"message": 'refused: password="a1B2c3D4e5F6" for bob'}, "a1B2c3D4"),
        ({"message": "line one\npassword: a1B2c3D4e5F6"}, "a1B2c3D4"),
        ({"frames": [{"code": "login(api_key='a1B2c3D4e5F6')"}]}, "a1B2c3D4"),
        ({"api_key": "a1B2c3D4e5F6 g7"}, "a1B2c3D4"),  # only the name shows that it is a secret
        ({"tokens": ["hf_" + "a1B2" * 9]}, "a1B2a1B2"),
    ],
)
def test_secret_in_an_event_is_masked(tmp_path: Path, about: dict[str, Any], secret: str) -> None:
    probe = Probe(tmp_path, {"RANK": "0"}, lambda: 1.0)
    probe.event("exception", **about, after="the end")
    (event,) = Probing(tmp_path).events()
    assert (event["kind"], event["after"]) == ("exception", "the end")
    assert "***" in str(event) and secret not in str(event)


def test_events_without_secrets_are_unchanged(tmp_path: Path) -> None:
    message = 'CUDA error: "invalid" argument\nat C:\\x'
    about: dict[str, Any] = {"message": message, "shape": [1, None, 2.5], "eos_token": "</s>"}
    probe = Probe(tmp_path, {"RANK": "0"}, lambda: 1.0)
    probe.event("exception", **about)
    (event,) = Probing(tmp_path).events()
    assert {name: event[name] for name in about} == about


def open_rings(folder: Path) -> int:
    """Return the number of rings in the folder that this process holds open."""
    links = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(link.parent == folder and link.suffix == ".ring" for link in links)


def ring_of(folder: Path, rank: int, pid: int) -> RingWriter:
    ring = RingWriter(folder / f"{rank}-{pid}-{rank}.ring", Draft(), rank)
    header = Header(record_struct(FIELDS).size, CAPACITY, rank, -1, pid, time.time(), FIELDS)
    ring._map[:128] = pack_header(header)[:128]
    return ring


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files as Linux shows them")
def test_rings_of_ended_ranks_are_closed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here, dead = ring_of(tmp_path, 0, os.getpid()), ring_of(tmp_path, 1, gone.pid)
    probing, mapped = Probing(tmp_path), open_rings(tmp_path)
    for ring in (here, dead):
        ring.write(1.0)
    assert len(probing.read()) == 2
    assert open_rings(tmp_path) == mapped + 1
    dead.write(2.0)  # the process id has another meaning here: the ring is still read
    assert [record.rank for record in probing.read()] == [1]
    assert open_rings(tmp_path) == mapped + 1


def test_ring_that_cannot_be_opened_is_retried(tmp_path: Path) -> None:
    code = (
        "import pathlib, resource, sys\n"
        "from stallwatch_exporter.rings.probing import Probing\n"
        "probing = Probing(pathlib.Path(sys.argv[1]))\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))\n"
        "print(len(probing.read()))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "print(len(probing.read()))\n"
    )
    Probe(tmp_path, {"RANK": "0"}).announce()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_invalid_ring_files_are_ignored(probed: Any, tmp_path: Path) -> None:
    run, probes = probed
    (tmp_path / "rings" / "0-1-1.ring").write_bytes(os.urandom(10_000))
    (tmp_path / "rings" / "0-2-2.ring").write_bytes(b"")
    run.train(probes, 2)
    assert run.metric("stallwatch_step") == 2
    assert run.agent.errors == 0


def test_rings_are_removed_with_the_run(probed: Any, tmp_path: Path) -> None:
    run, probes = probed
    probes[0].step(loss=0.25)
    run.end()
    assert run.metric("stallwatch_step") == 1  # written at the last moment
    assert not (tmp_path / "rings").exists()
    probes[0].step()  # a rank that outlives the agent


# ---- the environment


def test_bootstrap_folder_is_first_on_the_path(tmp_path: Path) -> None:
    assert with_probe({"PYTHONPATH": "/a:/b"}, tmp_path)["PYTHONPATH"] == f"{BOOTSTRAP}:/a:/b"
    # an empty part would mean the current folder
    assert with_probe({}, tmp_path)["PYTHONPATH"] == str(BOOTSTRAP)
    assert with_probe({"STALLWATCH_PROBE": "0"}, tmp_path) == {"STALLWATCH_PROBE": "0"}


def test_rings_are_elsewhere_if_home_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = make_folder(tmp_path / "file")
    assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
    folder.rmdir()


def test_loss_of_the_last_rank_is_reported_once(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom stallwatch_exporter.probe.api import Probe\n"
        "Probe(pathlib.Path(sys.argv[1]), {'RANK': '0'}).announce()\nprint(flush=True); input()\n"
    )

    def ranked() -> subprocess.Popen[bytes]:
        rank = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=-1, stdout=-1)
        assert rank.stdout is not None
        rank.stdout.readline()
        return rank

    rank = ranked()
    probing = Probing(tmp_path)
    (record,) = probing.read()
    assert record.values["phase"] == 0.0  # init
    assert not probing.just_left()
    rank.kill()
    rank.wait()
    again = ranked()  # a launcher restarts the rank at once
    list(probing.read())
    assert [probing.just_left(), probing.just_left()] == [True, False]
    again.kill()
    again.wait()
    assert probing.just_left()


def test_rings_of_killed_agents_are_removed_except_other_containers(tmp_path: Path) -> None:
    """In this container, no process has the id of the other container's agent."""
    mine = make_folder(tmp_path)
    tag = mine.name.rpartition("-")[2]
    days = {f"{2**22 + 1}-1-{tag}": 2, f"{2**22 + 1}-2-0123456789ab": 2, f"{2**22 + 2}-3-0123456789ab": 40}
    days |= {f"{os.getpid()}-4-{tag}": 40, "no-number": 40}
    for name, age in days.items():
        folder = mine.with_name(name)
        folder.mkdir()
        (folder / "0.ring").touch()
        at = time.time() - age * 86400
        os.utime(folder / "0.ring", (at, at))
        os.utime(folder, (at, at))
    busy = mine.with_name(f"{2**22 + 3}-5-0123456789ab")
    busy.mkdir()
    os.utime(busy, (0, 0))
    (busy / "0.jsonl").touch()
    left = {make_folder(tmp_path).name, mine.name, busy.name}
    left |= {f"{2**22 + 1}-2-0123456789ab", f"{os.getpid()}-4-{tag}", "no-number"}
    assert {path.name for path in mine.parent.iterdir()} == left


@pytest.mark.parametrize(
    ("ranks", "first"),
    [([(9, 1), (10, 2)], 8), ([(9, 1)], 8), ([(1, 0), (3, 1)], None), ([(9, -1)], None), ([], None)],
)
def test_first_rank_of_a_host_follows_from_any_local_rank(
    tmp_path: Path, ranks: list[tuple[int, int]], first: int | None
) -> None:
    """Slurm may assign ranks cyclically (``--distribution=cyclic``)."""
    for rank, local in ranks:
        RingWriter(tmp_path / f"{rank}-1-1.ring", Draft(), rank, local)
    probing = Probing(tmp_path)
    probing.read()
    assert probing.first_rank() == first
    probing.close()
