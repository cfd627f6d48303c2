"""The scoreboard's document, with and without the development corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import scoreboard
from click.testing import CliRunner
from scoring import Claim


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    row = {"id": "quiet", "signature": "benign:quiet", "log": "step 1 loss 2.0\nstep 2 loss 1.9\n"}
    (tmp_path / "cases.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(scoreboard, "OWN", (tmp_path,))
    monkeypatch.setattr(scoreboard, "benchmark_claims", lambda console: [Claim("a", 0.95, True)])
    return tmp_path


def test_document_is_kept_without_the_development_corpus(corpus: Path, tmp_path: Path) -> None:
    document = tmp_path / "scoreboard.md"
    document.write_text("measured elsewhere")
    result = CliRunner().invoke(scoreboard.main, ["--write", str(document)])
    assert (result.exit_code, document.read_text()) == (0, "measured elsewhere")
    assert "## The project's own corpus" in result.stdout and "## Calibration" not in result.stdout
    assert result.stderr.splitlines()[-1] == (
        "Not measured without a development corpus (--corpus DIR): every row of "
        f'"Development corpus" and "Calibration"; {document} is unchanged.'
    )


def test_document_equals_the_output_with_the_development_corpus(corpus: Path, tmp_path: Path) -> None:
    document = tmp_path / "scoreboard.md"
    result = CliRunner().invoke(scoreboard.main, ["--corpus", str(corpus), "--write", str(document)])
    assert result.exit_code == 0 and document.read_text().endswith(result.stdout)
    assert "## Development corpus" in result.stdout and "## Calibration" in result.stdout
    assert "Not measured" not in result.stderr
