"""Short texts that were broken between words: joined only if a rule then matches both parts."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_logs.line_format import Fold, fold_of, prefix_of
from stallwatch_logs.portions import HEAD
from stallwatch_rules.lines.reader import LineReader
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


def rules_in(text: str, matcher: Matcher, fold: Fold) -> set[str]:
    reader = LineReader("", None, *fold)
    return {rule for _, rule, _ in matcher.match(reader.feed(text.encode()) + reader.finish())}


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
        found, _ = diagnose_paths([tmp_path / "pasted.log"], Options(catalogue))
        assert found.primary is not None and found.primary.rule == rule, break_lines


def test_where_a_rule_is_sure_without_it_the_lines_stay(matcher: Matcher) -> None:
    assert fold_of(KV_CACHE.encode(), matcher) == Fold()
    noisy = "".join(QUOTED.format(n) + f"step {n}/30 loss 0.9000 errors 0 nan 0\n" for n in range(10, 30))
    assert fold_of(noisy.encode(), matcher) == Fold()
    listed = (
        "- no `RuntimeError: mismatch between the collectives of two ranks`\n- no `non-finite loss` seen\n"
    )
    assert fold_of(listed.encode(), matcher) == Fold()


@pytest.mark.parametrize("break_lines", [between_words, in_words])
@pytest.mark.parametrize(
    ("line_end", "encoding"), [("\r\n", "utf-8"), ("\n", "utf-16"), ("\r\n", "utf-16"), ("\r\n", "utf-8-sig")]
)
def test_it_is_known_however_it_was_saved(
    tmp_path: Path, catalogue: Catalogue, break_lines: Callable[[str, int], str], line_end: str, encoding: str
) -> None:
    text = break_lines(KV_CACHE, 70).replace("\n", line_end)
    (tmp_path / "pasted.log").write_bytes(text.encode(encoding))
    found, _ = diagnose_paths([tmp_path / "pasted.log"], Options(catalogue))
    assert found.primary is not None and found.primary.rule == "vllm-kv-cache-no-memory"


BROKEN = between_words(ONE_DEVICE.splitlines()[1], 80)
# A full line, after which more text does not begin a new line.
FULL = "rank 0 of 8 is at the step 120 of 300 and has waited for the other ranks for 5 s"
NCCL_INFO = "gpu-n12:3312:3398 [5] NCCL INFO Channel 00/02 : 0 1 2 3 4 5 6 7 8 9 a b c d e f"


@pytest.mark.parametrize(
    ("after", "rule", "folded"),
    [
        (f"{FULL}\nFatal Python error: Aborted\n", "process-sigabrt", False),
        (
            f"{NCCL_INFO}\ngpu-n12:3312:3398 [5] NCCL WARN Call to bind failed\n",
            "nccl-unhandled-system-error",
            True,
        ),
    ],
)
def test_no_rule_is_lost_by_putting_lines_together(
    matcher: Matcher, after: str, rule: str, folded: bool
) -> None:
    """The first rule matches at a line's start; the second is excluded in an INFO line."""
    width = max(map(len, BROKEN.splitlines()))
    text = BROKEN + after.replace(after.splitlines()[0], after.splitlines()[0][:width])
    fold = fold_of(text.encode(), matcher)
    assert fold == (Fold(width, spaced=True) if folded else Fold())
    assert rule in rules_in(text, matcher, fold)
    assert ("tensors-on-different-devices" in rules_in(text, matcher, fold)) is folded


def test_a_rule_that_one_piece_shows_is_no_reason(matcher: Matcher) -> None:
    """The lines are not joined if only the join at a broken word makes the rule match."""
    skipped = (
        "rank 1 global_steps=1 skipped=1 applied=False gnorm=inf overflow=True\ncur_scale=549755813888.0\n"
    )
    together = Fold(max(map(len, skipped.splitlines())))
    assert "grad-norm-nan" in rules_in(skipped, matcher, together)
    assert fold_of(skipped.encode(), matcher) == Fold()


def test_a_rule_that_is_known_is_no_reason(matcher: Matcher) -> None:
    """The lines are not joined if a whole line already matches the same rule."""
    assert fold_of(BROKEN.encode(), matcher) != Fold()
    whole = "RuntimeError: expected tensor to be on cuda\n"
    assert "tensors-on-different-devices" in rules_in(whole, matcher, Fold())
    assert fold_of((whole + BROKEN).encode(), matcher) == Fold()


def test_a_long_text_was_not_pasted(matcher: Matcher) -> None:
    broken = between_words(KV_CACHE, 80)
    assert fold_of(broken.encode(), matcher) == Fold(80, spaced=True)
    assert fold_of((broken + "step\n" * 4000).encode(), matcher) == Fold()


HANDSHAKE = (
    "ncclInternalError: Internal check failed.\nLast error:\nNet : Connection closed by remote peer n1<4>\n"
)


@pytest.mark.parametrize("lead", ["app_log ", "[gpu07] ", "2026-11-20 10:00:01 | INFO     | run:main:12 - "])
def test_a_lead_is_believed_where_a_rule_finds_its_words_behind_it(
    tmp_path: Path, catalogue: Catalogue, lead: str
) -> None:
    (tmp_path / "viewed.log").write_text("".join(lead + line for line in HANDSHAKE.splitlines(True)))
    found, _ = diagnose_paths([tmp_path / "viewed.log"], Options(catalogue))
    assert found.primary is not None and found.primary.rule == "nccl-remote-process-exited"


def test_a_lead_behind_which_numbers_are_found_is_believed() -> None:
    lead = prefix_of(b"".join(b"app_log step:%d/90 train_loss:2.%d\n" % (at, at) for at in range(9)))
    assert lead is not None and lead.take("app_log x") == ("app_log ", "x")
    assert prefix_of(b"".join(b"step:%d/90 train_loss:2.%d\n" % (at, at) for at in range(9))) is None


@pytest.mark.parametrize("lead", ["Evaluating: ", "Running requests: ", "Generating: "])
def test_bars_behind_their_name_count_no_steps(tmp_path: Path, catalogue: Catalogue, lead: str) -> None:
    bars = (f"{lead}{at}%|██▌       | {at}/100 [00:10<00:20,  2.00it/s]" for at in range(10, 60))
    (tmp_path / "eval.log").write_text("\n".join(bars))
    found, _ = diagnose_paths([tmp_path / "eval.log"], Options(catalogue))
    assert found.verdict == "no-training-log"


def test_steps_of_a_validation_are_no_trainings() -> None:
    assert (
        prefix_of(b"".join(b"validation step:%d/90 train_loss:2.%d\n" % (at, at) for at in range(9))) is None
    )


@pytest.mark.parametrize(
    "text",
    [
        "1. {}\n2. other\n3. more\n",
        "note-1: {}\n",
        "[doc] {}\n",
        "[doc] {}\n[doc] other\n",
        "#1 {}\n#2 other\n",
    ],
)
def test_lists_and_notes_of_failures_are_no_logs(matcher: Matcher, text: str) -> None:
    assert fold_of(text.format("KeyError: 'param_groups'").encode(), matcher) == Fold()


def test_a_lead_before_which_no_rule_is_gained_stays(matcher: Matcher) -> None:
    assert fold_of(b"app_log one thing\napp_log another thing\n", matcher).lead is None


def test_long_logs_that_begin_alike_share_a_lead_and_others_do_not() -> None:
    def log(words: bytes, rank: int) -> bytes:
        lines = (b"%s%d app_log step:%d/90 train_loss:2.%d\n" % (words, rank, at, at) for at in range(9000))
        return b"".join(lines)[:HEAD]

    first, second = prefix_of(log(b"pod-", 1)), prefix_of(log(b"pod-", 12))
    assert first is not None and first is second
    assert prefix_of(log(b"box-", 1)) not in (None, first)
