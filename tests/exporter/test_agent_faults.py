"""The agent survives faults of its own, of sinks and disks, and unexpected output."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pytest
from agentcases import HANG, OOM

from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.watching.agent import Agent

Make = Callable[..., Any]


def test_failing_diagnosis_does_not_prevent_an_incident(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run.steps(1, 10)
    monkeypatch.setattr(run.agent._reading, "diagnose", lambda **_: 1 / 0)
    run.say(*OOM)
    run.wait(40)
    assert run.changes == [("finding/cuda-oom/1", "open", "")]
    assert [(each.rule, each.step) for each in run.sent[:2]] == [
        ("cuda-oom", 10),
        ("silent-hang-no-error", 10),
    ]
    assert run.sent[1].evidence
    run.end("killed", 137)
    assert run.sent[-1].id.endswith("finding/cuda-oom/1") and run.sent[-1].kind == "ended"
    assert run.kept("diagnosis.json")["verdict"] == "unknown-failure"
    assert len(run.notices) == 1


def test_broken_stderr_does_not_affect_other_outputs(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    run.agent = Agent(
        run.folder, run.settings, run.catalogue, [run.sent.append], clock=lambda: run.now, notice=gone
    )
    run.steps(1, 10)
    monkeypatch.setattr(run.agent._reading, "feed", lambda lines: 1 / 0)
    run.say("a line that cannot be read")
    run.wait(40)
    assert run.changes == [(HANG + "/1", "open", "")]


def test_missing_file_descriptors_are_reported_once(run: Any) -> None:
    run.steps(1, 10)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        run.wait(3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [notice for notice in run.notices if "ranks" in notice] == [
        "checking the ranks failed (OSError: [Errno 24] Too many open files: '/dev/null'); the run continues"
    ]
    assert run.agent.errors


def test_failing_sink_is_reported_once_and_does_not_affect_others(run: Any, catalogue: Any) -> None:
    take: list[Any] = []

    def broken(incident: Any) -> None:
        raise RuntimeError("chat is down")

    agent = Agent(
        run.folder,
        run.settings,
        catalogue,
        [broken, take.append],
        clock=lambda: run.now,
        notice=run.notices.append,
    )
    run.agent = agent
    run.steps(1, 10)
    run.wait(40)
    run.say("step 11/1000 loss 0.18")
    run.wait(2)
    assert {incident.status for incident in take} == {"open", "resolved"}
    assert agent.errors >= 2
    assert [text for text in run.notices if "chat is down" in text] == run.notices
    assert len(run.notices) == 1


def test_fault_in_the_reader_does_not_end_the_agent(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run.steps(1, 10)
    monkeypatch.setattr(run.agent._reading, "feed", lambda lines: 1 / 0)
    run.say("step 11/1000 loss 0.18")
    monkeypatch.setattr(run.agent._reading, "diagnose", lambda **_: 1 / 0)
    run.wait(40)
    diagnosis = run.end()
    assert diagnosis.verdict == "unknown-failure" and diagnosis.notes
    assert run.agent.errors > 2 and any("ZeroDivisionError" in text for text in run.notices)
    assert b"step 11/1000" in (run.folder.path / "output.log").read_bytes()


def test_unwritable_home_loses_only_the_log_copies(watch: Make, tmp_path: Any) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    run = watch()
    run.steps(1, 10)
    run.wait(40)
    run.end()
    assert [change[:2] for change in run.changes][:2] == [(HANG + "/1", "open"), (HANG + "/1", "resolved")]
    assert run.sent[-1].kind == "ended"
    assert run.metric("stallwatch_log_lines_total") == 10
    assert (tmp_path / "home").is_file()


def test_binary_data_and_endless_lines_are_harmless(run: Any) -> None:
    run.steps(1, 10)
    run.agent.feed(Chunk("stdout", bytes(range(256)) * 1000, run.now))
    run.agent.feed(Chunk("stdout", b"x" * 3_000_000, run.now))
    run.agent.feed(Chunk("stdout", b"\n\xff\xfe\n", run.now))
    run.steps(11, 12)
    assert run.agent.errors == 0 and run.metric("stallwatch_step") == 12
