"""Prefixes of a text's lines, which are believed if they are certain, or if numbers follow them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_logs.line_format import prefix_of
from stallwatch_logs.portions import HEAD
from stallwatch_rules.pages.catalogue import Catalogue


def test_prefix_before_numbers_is_accepted() -> None:
    lead = prefix_of(b"".join(b"app_log step:%d/90 train_loss:2.%d\n" % (at, at) for at in range(9)))
    assert lead is not None and lead.take("app_log x") == ("app_log ", "x")
    assert prefix_of(b"".join(b"step:%d/90 train_loss:2.%d\n" % (at, at) for at in range(9))) is None


@pytest.mark.parametrize("lead", ["Evaluating: ", "Running requests: ", "Generating: "])
def test_named_progress_bars_of_an_evaluation_count_no_steps(
    tmp_path: Path, catalogue: Catalogue, lead: str
) -> None:
    bars = (f"{lead}{at}%|██▌       | {at}/100 [00:10<00:20,  2.00it/s]" for at in range(10, 60))
    (tmp_path / "eval.log").write_text("\n".join(bars))
    found, _ = diagnose_paths([tmp_path / "eval.log"], Options(catalogue))
    assert found.verdict == "no-training-log"


def test_steps_of_a_validation_are_not_training_steps() -> None:
    assert (
        prefix_of(b"".join(b"validation step:%d/90 train_loss:2.%d\n" % (at, at) for at in range(9))) is None
    )


def test_similar_long_logs_share_a_prefix() -> None:
    def log(words: bytes, rank: int) -> bytes:
        lines = (b"%s%d app_log step:%d/90 train_loss:2.%d\n" % (words, rank, at, at) for at in range(9000))
        return b"".join(lines)[:HEAD]

    first, second = prefix_of(log(b"pod-", 1)), prefix_of(log(b"pod-", 12))
    assert first is not None and first is second
    assert prefix_of(log(b"box-", 1)) not in (None, first)
