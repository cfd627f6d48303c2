"""Short texts that were broken between words: put together only where a rule then has both sides."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from stallwatch_exporter.files.folds import Fold, fold_of
from stallwatch_exporter.files.postmortem import diagnose_paths
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue

KV_CACHE = (
    "INFO 11-20 10:00:00 [gpu_worker.py:104] model is loaded\n"
    "ValueError: Free memory on device (8.0/64.0 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 57.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
)
ONE_DEVICE = (
    "  0%|          | 0/300 [00:00<?, ?it/s]\n"
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
    "and cpu! (when checking argument for argument index in method wrapper_CUDA__index_select)\n"
)
QUOTED = (
    "INFO rewards: sample {0} answered: 'RuntimeError: CUDA out of memory' is raised when memory is short\n"
)


def between_words(text: str, width: int) -> str:
    lines = (textwrap.wrap(line, width, break_on_hyphens=False) or [""] for line in text.splitlines())
    return "\n".join(part for parts in lines for part in parts) + "\n"


def in_words(text: str, width: int) -> str:
    return "".join(
        line[at : at + width] + "\n" for line in text.splitlines() for at in range(0, len(line), width)
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [(KV_CACHE, "vllm-kv-cache-no-memory"), (ONE_DEVICE, "tensors-on-different-devices")],
)
@pytest.mark.parametrize("width", [60, 70, 80])
def test_a_sentence_that_was_broken_is_known(
    tmp_path: Path, catalogue: Catalogue, text: str, rule: str, width: int
) -> None:
    for break_lines in (between_words, in_words):
        (tmp_path / "pasted.log").write_text(break_lines(text, width))
        found, _ = diagnose_paths([tmp_path / "pasted.log"], catalogue=catalogue)
        assert found.primary is not None and found.primary.rule == rule, break_lines


def test_where_a_rule_is_sure_without_it_the_lines_stay(matcher: Matcher) -> None:
    assert fold_of(KV_CACHE.encode(), matcher) == Fold()
    noisy = "".join(QUOTED.format(n) + f"step {n}/30 loss 0.9000 errors 0 nan 0\n" for n in range(10, 30))
    assert fold_of(noisy.encode(), matcher) == Fold()
    listed = (
        "- no `RuntimeError: mismatch between the collectives of two ranks`\n- no `non-finite loss` seen\n"
    )
    assert fold_of(listed.encode(), matcher) == Fold()


def test_a_long_text_was_not_pasted(matcher: Matcher) -> None:
    broken = between_words(KV_CACHE, 80)
    assert fold_of(broken.encode(), matcher) == Fold(80, spaced=True)
    assert fold_of((broken + "step\n" * 4000).encode(), matcher) == Fold()
