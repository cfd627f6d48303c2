"""Incidents on the terminal of ``stallwatch run``."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stallwatch.cli.watching import TerminalSink
from stallwatch_exporter.cluster.absence import host_gone
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.notices import line_of
from stallwatch_rules.endings import Ending
from stallwatch_rules.pages.catalogue import Catalogue


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def stall(**changes: Any) -> Incident:
    fields: dict[str, Any] = {
        "id": "r/stall/x/1",
        "run": "r",
        "kind": "stall",
        "rule": "x",
        "severity": "critical",
        "status": "open",
        "episode": 1,
        "opened_at": 0.0,
        "updated_at": 0.0,
        "stalled_seconds": 42.0,
        "evidence": ["[bold]not markup[/bold] \x1b[2Jline"],
    }
    return Incident(**{**fields, **changes})


def shown(stream: io.StringIO, *incidents: Incident, language: str = "en") -> str:
    sink = TerminalSink(Catalogue.of([]), language, stream)
    for incident in incidents:
        sink(incident)
    assert sink.close(120)
    return stream.getvalue()


def test_every_line_in_a_log_has_the_prefix() -> None:
    text = shown(io.StringIO(), stall(), stall(stalled_seconds=60.0))
    lines = text.splitlines()
    assert lines[0] == "stallwatch: [r] stalled: no step for 42 s"
    assert all(line.startswith("stallwatch:") for line in lines)
    assert len([line for line in lines if "stalled:" in line]) == 1  # the update is not shown again
    assert "\x1b" not in text


def test_panel_shows_angle_brackets_as_the_report_does() -> None:
    assert "train.py:4 in <module>" in shown(io.StringIO(), stall(evidence=["train.py:4 in <module>"]))


def test_terminal_shows_a_panel_without_interpreting_markup_of_the_log() -> None:
    text = shown(Terminal(), stall())
    assert text.startswith("\x1b[31m╭")  # without an empty line before it
    assert "[bold]not markup[/bold]" in text
    assert "\x1b[2J" not in text


def test_panel_ends_the_line_of_a_progress_bar_once(tmp_path: Path) -> None:
    with (tmp_path / "terminal").open("w") as file:
        screen = Terminal()
        screen.fileno = file.fileno  # type: ignore[method-assign]
        line_of(file.fileno()).ended = False
        assert shown(screen, stall()).startswith("\n\x1b[31m╭")
        assert line_of(file.fileno()).ended


@pytest.mark.parametrize(("language", "words"), [("en", "recovered after 1 min"), ("zh", "已恢复")])
def test_end_of_an_incident_is_shown(language: str, words: str) -> None:
    over = stall(status="resolved", resolution="recovered", resolved_at=60.0)
    assert words in shown(io.StringIO(), stall(), over, language=language)


def test_reaction_to_a_stall_is_shown_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The order holds even if the terminal is slow and the reaction is fast."""

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            time.sleep(0.2)
            return sys.stderr.write(text)

    sink = TerminalSink(Catalogue.of([]), "en", Slow())
    sink(stall())
    sink.notice("the run stands still: ending it")
    assert sink.settle(120)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert (first, last) == (
        "stallwatch: [r] stalled: no step for 42 s",
        "stallwatch: the run stands still: ending it",
    )
    assert sink.close(120)
    sink.notice("too late for the queue")
    assert capsys.readouterr().err == "stallwatch: too late for the queue\n"


def test_end_of_the_run_is_left_to_the_report() -> None:
    assert shown(io.StringIO(), stall(kind="ended")) == ""


def test_loss_of_another_host_is_not_left_to_the_report() -> None:
    gone = host_gone({"n2": 60.0})
    ended = {"kind": "ended", "rule": gone.rule, "primary": gone, "ending": Ending("failed", 1)}
    text = shown(io.StringIO(), stall(**ended, status="resolved", resolution="run-failed", resolved_at=9.0))
    assert "Host n2 stopped answering" in text


def test_end_of_the_run_is_not_repeated_in_the_panel_of_an_incident() -> None:
    ending = Ending("interrupted", 130, "SIGINT", "The run was interrupted.", 80.0)
    over = stall(status="resolved", resolution="run-stopped", resolved_at=60.0, ending=ending)
    text = shown(io.StringIO(), stall(), over)
    assert "interrupted by Control+C or SIGINT, after a stall of 1 min" in text
    assert "How the run ended" not in text and "The run was interrupted." not in text
