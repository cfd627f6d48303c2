"""New lines shortly before the end of a run."""

from __future__ import annotations

import re
import sys

import pytest
from smallruns import FAILED

from stallwatch_rules.failures.unexplained import Baseline, clusters
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import NewLines

EMPTY = Catalogue.of([])
END = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOddError: it broke\n'


def steps(first: int, last: int, prefix: str = "") -> str:
    return "".join(f"{prefix}step {number}/90 loss 1.5\n" for number in range(first, last))


def reading_of(*texts: str) -> RunReading:
    reading = RunReading(EMPTY, Matcher(EMPTY))
    for number, text in enumerate(texts):
        reading.feed(lines_of(text, f"{number}.log"))
    return reading


def new(*texts: str, baseline: str = "") -> list[NewLines]:
    reading = reading_of(*texts)
    if baseline:
        reading.baseline = Baseline.of(s.templates for s in reading_of(baseline).streams.values())
    return reading.diagnose(ending=FAILED).new_lines


def templates_of(found: list[NewLines]) -> list[str]:
    return [item.template for item in found]


HEALTHY = "queue 3 is slow\n" + steps(1, 9) + "queue 44 is slow\n"


def test_line_before_a_step_is_not_new() -> None:
    (one,) = new(HEALTHY + "[WARNING] shard 7 of 10.0.0.3:99 is silent\n" + END)
    assert (one.template, one.level, one.count) == ("[WARNING] shard <n> of <ip> is silent", "warning", 1)
    assert one.exemplar == "[WARNING] shard 7 of 10.0.0.3:99 is silent"
    assert (one.first.line, one.first.step, one.ranks) == (11, 8, [])


def test_most_severe_line_comes_first() -> None:
    end = "going down in order\n[ERROR] the shard server is silent\nthe queue may be slow, retrying\n"
    levels = [item.level for item in new(steps(1, 9) + end)]
    assert levels == ["error", "warning", "info"]


def test_line_of_another_rank_during_steps_is_not_new() -> None:
    first = steps(1, 9, "[rank0]: ") + "[rank0]: the pump of shard 9 stopped\n"
    assert templates_of(new(first)) == ["the pump of shard <n> stopped"]
    second = steps(1, 5, "[rank1]: ") + "[rank1]: the pump of shard 1 stopped\n" + steps(5, 9, "[rank1]: ")
    assert new(first + second) == []


def test_lines_before_the_first_step_belong_to_the_startup() -> None:
    start = "[rank1]: [ERROR] the pump of shard 9 is new\n"
    assert new(start + steps(1, 9, "[rank0]: ")) == []
    assert templates_of(new(start + steps(1, 3, "[rank0]: "))) == ["[ERROR] the pump of shard <n> is new"]
    assert templates_of(new(steps(1, 9, "[rank0]: ") + start)) == ["[ERROR] the pump of shard <n> is new"]


def test_new_lines_of_ranks_are_folded() -> None:
    text = "".join(
        steps(1, 9, f"[rank{rank}]: ") + f"[rank{rank}]: the pump of shard {rank} stopped\n"
        for rank in range(4)
    )
    (one,) = new(text)
    assert (one.ranks, one.count) == ([0, 1, 2, 3], 4)


def test_only_errors_are_new_without_steps() -> None:
    text = "loading the weights of the model\n[ERROR] the shard server is silent\n"
    assert templates_of(new(text)) == ["[ERROR] the shard server is silent"]


def test_baseline_excludes_known_lines() -> None:
    end = "the pump of shard 3 stopped\nall good things end here\n"
    assert len(new(steps(1, 9) + end)) == 2
    assert templates_of(new(steps(1, 9) + end, baseline=steps(1, 3) + "the pump of shard 8 stopped\n")) == [
        "all good things end here"
    ]
    early = "the pump of shard 3 stopped\n" + steps(1, 9)
    assert new(early) == []
    assert templates_of(new(early, baseline=steps(1, 9))) == ["the pump of shard <n> stopped"]


def test_healthy_run_has_no_new_lines() -> None:
    reading = reading_of(HEALTHY + "[WARNING] shard 7 is silent\n")
    assert reading.diagnose().verdict == "unfinished"
    assert reading.diagnose().new_lines == []


def test_exception_is_not_reported_as_a_new_line() -> None:
    assert new(steps(1, 9) + END) == []
    assert new(steps(1, 9) + "OddError: it broke\n") == []


def test_new_lines_do_not_depend_on_portions_or_order() -> None:
    logs = [
        steps(1, 9, f"[rank{rank}]: ") + f"[rank{rank}]: the pump of shard {rank} stopped\n"
        for rank in (0, 1)
    ]
    mixed = "".join(a + b for a, b in zip(*(log.splitlines(keepends=True) for log in logs), strict=True))
    whole, parts = RunReading(EMPTY, Matcher(EMPTY)), RunReading(EMPTY, Matcher(EMPTY))
    whole.feed(lines_of(logs[0] + logs[1]))
    for line in lines_of(mixed):
        parts.feed([line])
    one, other = (reading.diagnose(ending=FAILED).new_lines for reading in (whole, parts))
    assert [(n.template, n.count, n.ranks, n.level) for n in one] == [
        (n.template, n.count, n.ranks, n.level) for n in other
    ]


TEXTS = [("info", "worker alpha finished its part"), ("info", "worker beta finished its part")]


def test_similar_lines_of_one_level_are_one_cluster() -> None:
    pytest.importorskip("drain3")
    assert clusters([*TEXTS, ("error", TEXTS[0][1]), ("info", "the end")]) == [0, 0, 1, 2]


def test_only_equal_lines_are_one_cluster_without_drain3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "drain3.drain", None)
    assert clusters([*TEXTS, TEXTS[0], ("error", TEXTS[0][1])]) == [0, 1, 0, 2]


def test_new_word_in_a_known_line_is_not_new() -> None:
    pytest.importorskip("drain3")
    text = "the loader of shard alpha went on\n" + steps(1, 9) + "the loader of shard beta went on\n"
    assert new(text) == []


@pytest.mark.parametrize(
    "line",
    [
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "  error_file: <N/A>",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -9 (pid: 12)",
        "  host      : node-error-1",
        "  time      : 2026-05-02_10:00:00",
        "train.py FAILED",
        "Root Cause (first observed failure):",
        "To avoid data inconsistency, we are taking the entire process down.",
        "RuntimeError: CUDA kernel errors might be asynchronously reported at some other API call",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    ],
)
def test_common_lines_after_failures_are_not_reported(line: str) -> None:
    assert templates_of(new(steps(1, 9) + f"{line}\nthe pump stopped: cannot go on\n")) == [
        "the pump stopped: cannot go on"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "host : not reachable, giving up",
        "rank 3 failed: no pump",
        "exitcode of the pump is invalid",
        "odd error 77. CUDA kernel errors might be asynchronously reported at some other API call",
    ],
)
def test_message_with_similar_words_is_reported(line: str) -> None:
    assert len(new(steps(1, 9) + f"{line}\n")) == 1


SECRETS = [
    "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567",
    "ghp_" + "a1B2c3D4e5" * 4,
    "github_pat_" + "11ABCDEFG0" * 6,
    "AKIA" + "ABCDEFGHIJ012345",
    "sk-" + "ant-api03-" + "Ab1-" * 12,
    "Authorization: Bearer " + "kQ.x1-Yz_22" * 4,
    "xoxb-" + "123456789012-abcdefABCDEF",
    "https://bob:s3cr3tWord@example.com/x/y/z",
    "aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzzzz",
]


def fragments(secret: str) -> list[str]:
    """The words that masking numbers in a secret would leave of it."""
    names = {"hf", "ghp", "github", "pat", "AKIA", "sk", "ant", "api", "Authorization", "Bearer", "xoxb"}
    names |= {"https", "example", "com", "aws", "secret", "access", "key"}
    return [word for word in re.findall(r"[A-Za-z]+", secret) if len(word) > 1 and word not in names]


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret[:6])
@pytest.mark.parametrize("before", ["", "x" * 340 + " "], ids=["short", "cut"])
def test_secrets_in_new_lines_are_masked(secret: str, before: str) -> None:
    line = f"ERROR the shard server refused {before}{secret} just now\n"
    reading = reading_of(steps(1, 9) + line + line + END)
    (entry,) = [item for item in reading.streams["0.log", None].templates.entries.values() if item.count == 2]
    (one,) = [
        new_line
        for new_line in reading.diagnose(ending=FAILED).new_lines
        if "shard server" in new_line.exemplar
    ]
    assert "***" in one.exemplar
    kept = f"{one} {entry.first}" + (f" {entry.last}" if before else "")
    assert [word for word in fragments(secret) if word in kept] == []


def test_lines_that_differ_in_their_tokens_are_one_template() -> None:
    lines = "".join(f"ERROR no access with {token}\n" for token in ("hf_" + letter * 34 for letter in "xyz"))
    (one,) = new(steps(1, 9) + lines + END)
    assert one.template == "ERROR no access with hf_***"
