"""Foreign text on the terminal of a user who lists runs and incidents, and invisible text."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch.cli.context import plain_table, show_table
from stallwatch_alerts.neutral import neutralise
from stallwatch_rules.text.controls import without_controls

Attacked = Callable[..., subprocess.CompletedProcess[str]]

CODES = "\x1b]0;owned\x07\x1b[2J\x9b31m"


def test_terminal_codes_in_a_shared_run_record_are_removed(attacked: Attacked, tmp_path: Path) -> None:
    """Another member of the group that shares the state folder makes the run's folder and its record."""
    name = f"hers{CODES}\nforged\tfinished"
    folder = tmp_path / "home" / "runs" / name
    folder.mkdir(parents=True)
    record = {
        "run": name,
        "pid": 1,
        "host": f"node{CODES}\tforged",
        "command": ["train"],
        "cwd": "/",
        "started_at": 1.0,
        "updated_at": 2.0,
        "ended_at": 2.0,
        "state": "failed",
        "ending": {"kind": "killed", "exit_code": 137, "signal": f"SIGKILL{CODES}"},
    }
    (folder / "agent.json").write_text(json.dumps(record))
    done = attacked(tmp_path, "runs", env={"STALLWATCH_HOME": str(tmp_path / "home")})
    (line,) = done.stdout.splitlines()
    assert line.startswith("hers?") and line.count("\t") == 6
    assert not {"\x1b", "\x07", "\x9b"} & set(done.stdout + done.stderr)


def test_terminal_codes_in_a_table_cell_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    """The ids of incidents come from a database that others may share, and from relayed alerts."""
    table = plain_table("id")
    table.add_row(f"run{CODES}[red]x[/red]\nforged", style="dim")
    assert show_table(table)
    _, row = capsys.readouterr().out.splitlines()
    assert row.strip() == "run?]0;owned??[2J?31m[red]x[/red] forged"


# Soft hyphen, Mongolian and Hangul fillers, annotations, variation selectors, tags.
@pytest.mark.parametrize(
    "unseen",
    ["\u00ad", "\u180e", "\u3164", "\ufe0d", "\ufff9", "\ufffb", "\U000e0001", "\U000e007f", "\U000e0101"],
)
def test_invisible_characters_of_a_line_are_removed(unseen: str) -> None:
    assert without_controls(f"a{unseen}b") == "ab"
    assert neutralise(f"@{unseen}here") == "＠here"


def test_lone_surrogate_becomes_a_question_mark() -> None:
    assert neutralise("loss \ud83d at \udcff\U0001f600") == "loss ? at ?\U0001f600"
