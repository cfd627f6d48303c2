"""A second agent in the folder of the first one continues its incidents."""

from __future__ import annotations

from typing import Any

from agentcases import HANG


def test_restart_continues_episodes_and_closes_open_incidents(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    run.end("unknown", None)
    run.restart()
    assert run.metric("stallwatch_incident_open{rule=silent-hang-no-error,severity=critical}") == 1
    run.steps(11, 20)
    assert run.changes == [(HANG + "/1", "resolved", "recovered")]
    run.wait(40)
    assert run.changes[1:] == [(HANG + "/2", "open", "")]


def test_restart_continues_an_open_stall(run: Any) -> None:
    log = "".join(f"step {step}/1000 loss 0.5\n" for step in range(1, 11)).encode()
    run.steps(1, 10)
    last = run.now
    run.wait(40)
    run.end("unknown", None)
    run.restart()
    run.agent.history("stdout", log, None, counted=False)
    run.agent.history_ends(last)
    run.wait(1800)
    assert {each.id for each in run.sent} == {"sft/" + HANG + "/1"}
    assert {each.status for each in run.sent} == {"open"}


def test_truncated_journal_entry_is_ignored(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    with (run.folder.path / "incidents.jsonl").open("ab") as out:
        out.write(b'{"id": "sft/st\n\xff\n')
    run.restart()
    run.steps(11, 12)
    assert run.changes == [(HANG + "/1", "resolved", "recovered")]


def test_next_agent_sends_unsent_incidents_of_a_killed_agent(run: Any) -> None:
    run.folder.write_info(reported=False)
    run.steps(1, 10)
    run.wait(40)
    run.steps(11, 20)
    run.wait(700)  # a report this old is stored for certain
    first = run.changes
    run.restart()
    assert first[:2] == [(HANG + "/1", "open", ""), (HANG + "/1", "resolved", "recovered")]
    assert run.changes == [(HANG + "/2", "open", "")]
    run.folder.write_info(reported=True)
    run.restart()
    assert run.changes == []
