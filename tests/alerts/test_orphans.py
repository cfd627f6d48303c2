from __future__ import annotations

import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.orphans import close_orphans, report_unsent
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs import runfolder
from stallwatch_exporter.runs.runfolder import RunFolder, agent_alive, mark_reported, read_info
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import render
from stallwatch_rules.pages.catalogue import Catalogue

Stall = Callable[..., Incident]


def run(home: Path, name: str, *incidents: Incident, dead: bool) -> Path:
    """Create a run's folder with its agent's incidents; the agent is this process, or a dead one."""
    folder = RunFolder.create(name, ["python"], home=home, now=time.time())
    info = read_info(folder.path)
    assert info is not None and agent_alive(info)
    if dead:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        last = time.time() - 120
        folder.write_json("agent.json", msgspec.structs.replace(info, pid=gone.pid, updated_at=last))
    lines = [msgspec.json.encode(incident) for incident in incidents]
    (folder.path / "incidents.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return folder.path


def test_open_incidents_of_a_dead_agent_are_closed_once(tmp_path: Path, stall: Stall) -> None:
    dead = run(
        tmp_path,
        "dead",
        stall(id="dead/stall/x/1", run="dead"),
        stall(id="dead/stall/y/1", run="dead", status="resolved", resolution="recovered"),
        dead=True,
    )
    for name, last in (("ended", {"kind": "ended"}), ("left", {"kind": "finding", "resolution": "unmended"})):
        run(tmp_path, name, stall(id=f"{name}/x/x/1", run=name, **last), dead=True)
    alive = run(tmp_path, "alive", stall(id="alive/stall/x/1", run="alive"), dead=False)
    heard: list[Incident] = []
    info = read_info(dead)
    assert info is not None
    (closed,) = close_orphans(tmp_path, 5000.0, heard.append)
    assert heard == [closed]
    assert (closed.id, closed.status, closed.resolution) == ("dead/stall/x/1", "resolved", "unknown")
    assert closed.resolved_at == info.updated_at, "when the agent was last heard of"
    assert [read_incident.resolution for read_incident in read_incidents(dead)] == ["unknown", "recovered"]
    assert [read_incident.status for read_incident in read_incidents(alive)] == ["open"]
    assert close_orphans(tmp_path, 6000.0, heard.append) == [] and len(heard) == 1


def test_open_incidents_of_a_stopped_tail_are_closed_as_unwatched(tmp_path: Path, stall: Stall) -> None:
    path = run(tmp_path, "tailed", stall(id="tailed/stall/x/1", run="tailed"), dead=True)
    info, ended = read_info(path), time.time() - 90
    assert info is not None
    folder = RunFolder("tailed", path, info)
    folder.write_info(ended_at=ended, updated_at=ended, ending=Ending("unknown", None), state="finished")
    (closed,) = close_orphans(tmp_path, time.time(), lambda _: None)
    assert render(closed.closing) == "no longer watched" and closed.resolved_at == ended
    folder.write_info(ending=Ending("failed", 1))
    (path / "incidents.jsonl").write_bytes(msgspec.json.encode(stall(id="tailed/stall/x/1", run="tailed")))
    assert close_orphans(tmp_path, time.time(), lambda _: None) == []


@pytest.mark.parametrize("ended", [False, True], ids=["mid-run", "as it left"])
def test_recorded_unsent_incident_is_sent_by_the_next_agent(
    tmp_path: Path, stall: Stall, chat_server: Any, catalogue: Catalogue, ended: bool
) -> None:
    at = time.time() - 150
    crash = stall(
        id="dead/ended/cuda-oom/1", run="dead", kind="ended", rule="cuda-oom", status="resolved",
        resolution="run-failed", opened_at=at, updated_at=at,
    )  # fmt: skip
    stalled = stall(id="dead/stall/silent-hang-no-error/1", run="dead", opened_at=at, updated_at=at)
    path = run(tmp_path, "dead", *([crash] if ended else [stalled]), dead=True)
    info = read_info(path)
    assert info is not None
    RunFolder("dead", path, info).write_info(reported=False, ended_at=info.updated_at if ended else None)
    for _ in range(2):  # the first agent is killed, too
        sink = ChatSink(
            AlertSettings(urls=(chat_server.url,)),
            catalogue,
            spool=lambda: Outbox(IncidentStore.at_home(tmp_path).engine),
        )
        found = report_unsent(tmp_path, time.time(), sink)
        assert sink.close(120)
    assert [body["id"] for body in chat_server.bodies] == [(crash if ended else stalled).id]
    mark_reported(*found[0])
    assert report_unsent(tmp_path, time.time(), pytest.fail) == []


def test_old_unsent_incidents_are_not_sent(tmp_path: Path, stall: Stall) -> None:
    now = time.time()

    def left(name: str, gone: float) -> None:
        at = now - gone
        before = stall(id=f"{name}/stall/x/1", run=name, opened_at=at - 7200, updated_at=at - 7200)
        over = msgspec.structs.replace(
            before, status="resolved", resolution="recovered", updated_at=at - 7000, resolved_at=at - 7000
        )
        last = stall(id=f"{name}/stall/y/1", run=name, opened_at=at - 60, updated_at=at - 60)
        path = run(tmp_path, name, before, over, last, dead=True)
        info = read_info(path)
        assert info is not None
        RunFolder(name, path, info).write_info(reported=False, updated_at=at)

    left("old", 20 * 86400)
    left("new", 3600)
    heard: list[Incident] = []
    assert [info.run for _, info in report_unsent(tmp_path, now, heard.append)] == ["new"]
    assert [(item.id, item.status) for item in heard] == [("new/stall/y/1", "open")]


def test_incident_open_when_its_agent_was_killed_is_always_sent(tmp_path: Path, stall: Stall) -> None:
    """This happens if the messages' database was locked for all that time."""
    now = time.time()
    hung = stall(id="dead/stall/x/1", run="dead", opened_at=now - 7200, updated_at=now - 7200)
    path = run(tmp_path, "dead", hung, dead=True)
    info = read_info(path)
    assert info is not None
    RunFolder("dead", path, info).write_info(reported=False)
    heard: list[Incident] = []
    assert len(report_unsent(tmp_path, now, heard.append)) == 1
    assert [(item.id, item.status) for item in heard] == [(hung.id, "open")]


@pytest.mark.parametrize("change", ["nothing", "it ended", "another goes on"])
def test_records_of_an_agent_that_was_only_paused_are_kept(tmp_path: Path, stall: Stall, change: str) -> None:
    """A container was paused, or ``stallwatch tail`` continues with the run."""
    path = run(tmp_path, "dead", stall(id="dead/stall/x/1", run="dead"), dead=True)
    info, now = read_info(path), time.time()
    assert info is not None
    agent = RunFolder("dead", path, info)
    agent.write_info(reported=False)
    found = report_unsent(tmp_path, now, lambda _: None)
    if change == "it ended":
        agent.write_info(ended_at=now, updated_at=now, state="finished")
    elif change == "another goes on":
        agent.write_info(pid=1, started_at=now)
    mark_reported(*found[0])
    after = read_info(path)
    assert after is not None and after.reported == (change == "nothing")
    assert (after.ended_at, after.state) == (agent.info.ended_at, agent.info.state)
    assert (after.pid, after.started_at) == (agent.info.pid, agent.info.started_at)


def test_agent_with_a_recent_record_is_not_dead(tmp_path: Path, stall: Stall) -> None:
    """Its processes are invisible if another container uses the same state folder."""
    folder = run(tmp_path, "elsewhere", stall(id="elsewhere/stall/x/1", run="elsewhere"), dead=True)
    info = read_info(folder)
    assert info is not None and not agent_alive(info)
    for since, closed in ((-1.0, 0), (30.0, 0), (90.0, 1)):
        assert len(close_orphans(tmp_path, info.updated_at + since, lambda _: None)) == closed


def test_notified_chats_learn_once_that_the_run_is_unwatched(
    tmp_path: Path, stall: Stall, chat_server: Any, other_chat_server: Any, catalogue: Catalogue
) -> None:
    opened = stall(id="dead/stall/silent-hang-no-error/1", run="dead", opened_at=time.time())

    def agent(*urls: str) -> ChatSink:
        return ChatSink(
            AlertSettings(urls=urls), catalogue, spool=lambda: Outbox(IncidentStore.at_home(tmp_path).engine)
        )

    first = agent(chat_server.url)
    first(opened)
    assert first.close(120)
    run(tmp_path, "dead", opened, dead=True)
    # Two agents check at the same moment; the chat of the second agent got no message about the incident.
    looking = [agent(chat_server.url), agent(chat_server.url, other_chat_server.url)]
    journal = tmp_path / "runs/dead/incidents.jsonl"
    before = journal.read_bytes()
    for entry in looking:
        journal.write_bytes(before)
        assert len(close_orphans(tmp_path, time.time(), entry)) == 1
    assert all(item.close(120) for item in looking)
    titles = [body["title"] for body in chat_server.bodies]
    assert titles[1:] == ["[dead] agent gone: stalled when last seen"]
    assert chat_server.bodies[1]["status"] == "resolved" and other_chat_server.bodies == []


def test_records_cannot_refer_to_other_folders(
    tmp_path: Path, stall: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared state folder, an account must not make this one write into folders that it cannot enter."""
    private = run(tmp_path / "private", "live", stall(id="live/stall/x/1", run="live"), dead=True)
    before = (private / "incidents.jsonl").read_bytes()
    home = tmp_path / "shared"
    planted = run(home, "planted", dead=True)
    climbs = {"run": f"../../private/runs/{private.name}"}
    record = msgspec.json.decode((planted / "agent.json").read_bytes()) | climbs
    (planted / "agent.json").write_bytes(msgspec.json.encode(record))
    (home / "runs" / "linked").symlink_to(private)
    real = runfolder.is_own
    monkeypatch.setattr(
        runfolder, "is_own", lambda status, **rest: not stat.S_ISLNK(status.st_mode) and real(status, **rest)
    )
    assert [info.run for info in runfolder.list_runs(home)] == ["planted"]
    assert close_orphans(home, 5000.0, lambda _: None) == []
    journal = home / "runs" / "planted" / "incidents.jsonl"
    journal.unlink()
    journal.symlink_to(private / "incidents.jsonl")
    assert close_orphans(home, 5000.0, lambda _: None) == []
    assert (private / "incidents.jsonl").read_bytes() == before


def of_hosts(home: Path, name: str, key: str, merged: Incident | None, *, dead: bool = True) -> Path:
    """Create the folder of an agent of a run over hosts, which may have merged an incident of all hosts."""
    folder = run(home, name, dead=dead)
    info = read_info(folder)
    assert info is not None
    (folder / "agent.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(info, key=key, reported=False))
    )
    if merged is not None:
        (folder / "run-incidents.jsonl").write_bytes(msgspec.json.encode(merged) + b"\n")
    return folder


def test_merged_incident_of_a_run_over_hosts_is_reported_once(tmp_path: Path, stall: Stall) -> None:
    merged = stall(id="sft/stall/x/1", run="sft")
    first = of_hosts(tmp_path, "sft", "5f", merged)
    other = of_hosts(tmp_path, "sft-n2", "5f", None)
    (other / "incidents.jsonl").write_bytes(msgspec.json.encode(stall(id="sft-n2/stall/x/1")) + b"\n")
    heard: list[Incident] = []
    report_unsent(tmp_path, time.time(), heard.append)
    assert [item.id for item in heard] == ["sft/stall/x/1"]
    closed = close_orphans(tmp_path, time.time(), heard.append)
    assert [(item.id, item.resolution) for item in closed] == [("sft/stall/x/1", "unknown")]
    assert close_orphans(tmp_path, time.time(), heard.append) == []
    assert b"unknown" in (first / "run-incidents.jsonl").read_bytes()


def test_merged_incident_stays_open_while_another_agent_is_alive(tmp_path: Path, stall: Stall) -> None:
    of_hosts(tmp_path, "sft", "5f", stall(id="sft/stall/x/1", run="sft"))
    of_hosts(tmp_path, "sft-n2", "5f", None, dead=False)
    assert close_orphans(tmp_path, time.time(), lambda _: None) == []
    assert report_unsent(tmp_path, time.time(), lambda _: None) == []


def test_incident_closed_by_another_host_is_not_closed_again(tmp_path: Path, stall: Stall) -> None:
    merged = stall(id="sft/stall/x/1", run="sft")
    over = msgspec.structs.replace(merged, status="resolved", resolution="recovered", resolved_at=9.0)
    of_hosts(tmp_path, "sft", "5f", merged)
    of_hosts(tmp_path, "sft-n2", "5f", over)
    assert close_orphans(tmp_path, time.time(), lambda _: None) == []
    heard: list[Incident] = []
    report_unsent(tmp_path, time.time(), heard.append)
    assert {item.status for item in heard} <= {"resolved"}  # the database must not show it as open again


@pytest.mark.parametrize(("hosts", "is_sent"), [([], True), (["here"], True), (["here", "n2"], False)])
def test_incident_that_another_host_might_have_closed_is_closed_without_a_message(
    tmp_path: Path, stall: Stall, hosts: list[str], is_sent: bool
) -> None:
    """The other hosts have their own state folders, and one of their agents takes over."""
    named = [socket.gethostname() if host == "here" else host for host in hosts]
    of_hosts(tmp_path, "sft", "5f", stall(id="sft/stall/x/1", run="sft", hosts=named))
    sent: list[Incident] = []
    noted: list[Incident] = []
    closed = close_orphans(tmp_path, time.time(), sent.append, noted.append)
    assert [item.status for item in closed] == ["resolved"]
    assert (sent, noted) == ((closed, []) if is_sent else ([], closed))
    assert close_orphans(tmp_path, time.time(), sent.append, noted.append) == []
