"""Drafts of rule pages from unknown failures."""

from __future__ import annotations

import pytest
from smallruns import FAILED

from stallwatch_rules.authoring.checking import check_page
from stallwatch_rules.authoring.drafting import (
    DraftError,
    draft,
    failure_of,
    id_of,
    origin_of,
    pattern_of,
    quiet_line,
)
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import parse_page
from stallwatch_rules.pages.patterns import compile_re2, pattern_fault
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

LOG = """\
step 1/90 loss 1.5
reward server 3 answered in 0.3 s
Traceback (most recent call last):
  File "/home/ada/train.py", line 5, in <module>
    main()
  File "/opt/e/lib/python3.11/site-packages/trl/trainer/grpo_trainer.py", line 512, in step
    raise TimeoutError(msg)
TimeoutError: {message}
"""
MESSAGE = "The reward server 10.0.0.3:80 (group 'a') gave no answer [7 of 8, 30.5 s] for /data/part-3/x.bin"


def diagnosed(text: str) -> Diagnosis:
    reading = RunReading(Catalogue.of([]), Matcher(Catalogue.of([])))
    reading.feed(lines_of(text))
    return rendered(reading.diagnose())


def test_pattern_keeps_fixed_text_and_masks_the_rest() -> None:
    pattern = pattern_of(failure_of(diagnosed(LOG.format(message=MESSAGE))))
    assert pattern == (
        r"TimeoutError: The reward server [\d.:]+ \(group 'a'\) gave no answer"
        r" \[(?P<number_1>\d+) of (?P<number_2>\d+), [\d.eE+-]+ s\] for \S+"
    )
    other = (
        MESSAGE.replace("10.0.0.3:80", "10.1.2.3:81").replace("7 of 8", "1 of 16").replace("/data", "/mnt")
    )
    assert compile_re2(pattern, encoded=False).search(f"TimeoutError: {other}")
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE,
        'it\'s "quoted": {brace} ^start$ a|b *star* +plus+ \\d+ # hash',
        "the word " + "word " * 200 + "at last",
        "the shards (" + "[7] of (8), " * 20 + ") do not fit",
        "多个进程同时写入 checkpoint 目录失败 and nothing was saved",
        "token hf_" + "a" * 34 + " is not allowed to read the model",
        "user /home/ada/models/llama has no tokenizer in its folder",
    ],
)
def test_draft_is_a_valid_page_that_fires_on_its_log(message: str) -> None:
    log = LOG.format(message=message)
    diagnosis = diagnosed(log)
    failure = failure_of(diagnosis)
    pattern = pattern_of(failure)
    text = draft(
        failure, pattern, rule="x-y", family="own", since="0.1", quiet="all is well", versions={"trl": "1.2"}
    )
    page = parse_page(text, "own/x-y.md", chinese=False)
    assert check_page(page) == []
    assert (page.status, page.emitted_by[0].package, page.title_zh) == ("incubating", "trl", page.title)
    assert "hf_aaaa" not in text
    matched = Matcher(Catalogue.of([page])).match_text(log)
    assert [(number, rule) for number, rule, _ in matched] == [(8, "x-y")]


def test_origin_and_name_are_proposed() -> None:
    failure = failure_of(diagnosed(LOG.format(message=MESSAGE)))
    assert origin_of(failure) == ("trl", "trl/trainer/grpo_trainer.py")
    assert id_of(failure, "trl") == "trl-reward-server-group-gave"


def test_quiet_sample_is_the_most_similar_healthy_line() -> None:
    failure = failure_of(diagnosed(LOG.format(message=MESSAGE)))
    lines = ["loading", "reward server 3 answered", f"TimeoutError: {MESSAGE}"]
    assert quiet_line(failure, pattern_of(failure), lines) == "reward server 3 answered"
    assert quiet_line(failure, pattern_of(failure), []) == "step 1 loss 0.5"


def test_error_line_without_an_exception_is_drafted() -> None:
    reading = RunReading(Catalogue.of([]), Matcher(Catalogue.of([])))
    reading.feed(lines_of("step 1/9 loss 1.5\n[ERROR] the pump of shard 3 stopped for good\n"))
    failure = failure_of(rendered(reading.diagnose(ending=FAILED)))
    assert pattern_of(failure) == r"\[ERROR\] the pump of shard (?P<number_1>\d+) stopped for good"


@pytest.mark.parametrize(
    "lead",
    [
        "[E1121 10:00:00.123 ProcessGroupPump.cpp:616] ",
        "[E1121 10:00:00.123456789 ProcessGroupPump.cpp:616] ",
        "E1121 10:00:00.124000 140 pump/api.py:869] ",
        "E1121 10:00:00.124000  140 pump/api.py:869] ",
    ],
)
def test_pattern_excludes_the_prefix_of_glog(lead: str) -> None:
    reading = RunReading(Catalogue.of([]), Matcher(Catalogue.of([])))
    reading.feed(lines_of(f"step 1/9 loss 1.5\n{lead}the pump of shard 3 stopped for good\n"))
    failure = failure_of(rendered(reading.diagnose(ending=FAILED)))
    assert pattern_of(failure) == r"the pump of shard (?P<number_1>\d+) stopped for good"
    assert failure.line.startswith(lead)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('Traceback (most recent call last):\n  File "a.py", line 1, in f\nAssertionError\n', "too short"),
        ("step 1 loss 0.5\n", "no unknown failure"),
    ],
)
def test_unsuitable_log_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DraftError, match=reason):
        failure_of(diagnosed(text))
