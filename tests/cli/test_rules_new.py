"""``stallwatch rules new``: from a log to a custom rule page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Stallwatch = Callable[..., Result]

LOG = """\
step 1/90 loss 1.5
Traceback (most recent call last):
  File "/opt/e/lib/python3.11/site-packages/trl/trainer/grpo.py", line 512, in step
    raise TimeoutError(msg)
TimeoutError: the kitchen sent no soup to table 7
"""


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "dead.log").write_text(LOG)
    return "dead.log"


def test_draft_passes_the_check_and_names_its_log(stallwatch: Stallwatch, tmp_path: Path, log: str) -> None:
    result = stallwatch("rules", "new", "--from", log)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "my-rules/trl/trl-kitchen-sent-soup-table.md\n"
    assert "stallwatch rules check my-rules" in result.stderr
    assert stallwatch("rules", "check", "my-rules").stdout == "1 page, no problems\n"
    report = json.loads(stallwatch("diagnose", log, "--rules", "my-rules", "--json").stdout)
    assert (report["verdict"], report["primary"]["rule"]) == ("failed", "trl-kitchen-sent-soup-table")
    assert report["primary"]["captures"] == {"number_1": "7"}


def test_unwritten_sections_are_listed_and_not_reported(
    stallwatch: Stallwatch, tmp_path: Path, log: str
) -> None:
    stallwatch("rules", "new", "no-soup", "--from", log)
    result = stallwatch("rules", "check", "my-rules")
    assert result.exit_code == 0
    assert (
        "no-soup.md: sections not written yet: What happened, Why, Fix, When it is harmless" in result.stderr
    )
    assert "To be written" not in stallwatch("diagnose", log, "--rules", "my-rules").stdout
    page = tmp_path / "my-rules" / "trl" / "no-soup.md"
    page.write_text(page.read_text().replace("To be written: the mechanism.", "The cook slept."))
    assert "not written yet: What happened, Fix, When" in stallwatch("rules", "check", "my-rules").stderr
    report = stallwatch("diagnose", log, "--rules", "my-rules").stdout
    assert "The cook slept." in report
    assert "To be written" not in report


def test_name_family_and_folder_can_be_set(stallwatch: Stallwatch, tmp_path: Path, log: str) -> None:
    command = ("rules", "new", "no-soup", "--from", log, "--family", "kitchen", "--output", "mine")
    assert stallwatch(*command).stdout == "mine/kitchen/no-soup.md\n"
    page = tmp_path / "mine" / "kitchen" / "no-soup.md"
    page.write_text("mine\n")
    again = stallwatch(*command)
    assert again.exit_code == 2
    assert "already exists" in again.stderr
    assert page.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("No_Soup",), "not kebab-case"), (("cuda-oom",), "already"), (("--family", "A B"), "not kebab-case")],
)
def test_invalid_names_are_refused(
    stallwatch: Stallwatch, log: str, arguments: tuple[str, ...], expected: str
) -> None:
    result = stallwatch("rules", "new", "--from", log, *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_log_without_an_unknown_failure_is_refused(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "oom.log").write_text(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    known = stallwatch("rules", "new", "--from", "oom.log")
    assert known.exit_code == 2
    assert known.stderr == (
        "stallwatch: oom.log: a rule for the failure in this log already exists: cuda-oom"
        " (stallwatch rules show cuda-oom)\n"
    )
    (tmp_path / "good.log").write_text("step 1/90 loss 1.5\n")
    assert "no unknown failure" in stallwatch("rules", "new", "--from", "good.log").stderr


def test_new_lines_next_to_a_known_failure_are_not_an_unknown_failure(
    stallwatch: Stallwatch, tmp_path: Path
) -> None:
    (tmp_path / "oom.log").write_text(
        'step 1/90 loss 1.5\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "[ERROR] the pump of shard 7 was not reachable\n"
    )
    known = stallwatch("rules", "new", "--from", "oom.log")
    assert known.exit_code == 2
    assert "already exists: cuda-oom" in known.stderr
    assert not (tmp_path / "my-rules").exists()


def test_missing_log_is_the_only_message(stallwatch: Stallwatch) -> None:
    result = stallwatch("rules", "new", "--from", "nowhere.log")
    assert result.exit_code == 2
    assert "nowhere.log: no such file" in result.stderr
    assert "unknown failure" not in result.stderr
