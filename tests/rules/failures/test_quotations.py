"""An error that an informational line only quotes did not occur in the run."""

from __future__ import annotations

import pytest
from packaged import CATALOGUE

from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.reading import RunReading

MATCHER = Matcher(CATALOGUE)
STEPS = "step 1/60 loss 2.1\nstep 2/60 loss 2.0\n"
OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


def fired(line: str) -> list[str]:
    reading = RunReading(CATALOGUE, MATCHER)
    matches = reading.feed(lines_of(f"{STEPS}{line}\n")).matches
    return [match.rule for match in matches] + [seen.exception for seen in reading.diagnose().unknown]


@pytest.mark.parametrize(
    "line",
    [
        f"2026-11-21 03:57:04,336 INFO rewards: sample 5 answered: '{OOM}' is raised when memory is short",
        f'INFO:rewards:the model wrote "{OOM}"',
        f"2026-11-21 03:57:04.336 | DEBUG    | judge:score:12 - wrong answer `{OOM}`, score 0",
        f"I1121 03:57:04.336000 140 judge.py:12] it doesn't help to print '{OOM}', score 0",
        f"[rank0]: [2026-11-21 03:57:04,336] [INFO] [judge.py:12:score] 回答：“{OOM}”表示显存不足",
        f"INFO judge: 'no' is worse than '{OOM}'",
    ],
)
def test_error_that_an_informational_line_quotes_is_no_match(line: str) -> None:
    assert fired(line) == []


@pytest.mark.parametrize(
    "line",
    [
        f"2026-11-21 03:57:04,336 ERROR rewards: sample 5 answered: '{OOM}'",
        f"2026-11-21 03:57:04.336 | WARNING  | judge:score:12 - it says '{OOM}'",
        f"E1121 03:57:04.336000 140 judge.py:12] the step ended: '{OOM}'",
        f"F1121 03:57:04.336000 140 judge.py:12] the step ended: '{OOM}'",
        f"Exception: '{OOM}'",
        f"INFO trainer: {OOM}",
        f"INFO trainer: stage 'warm up' ended: {OOM}. See 'docs'",
        f"INFO launcher: rank 3 failed: '{OOM}'",
        f"INFO launcher: rank 3 raised '{OOM}'",
        f"INFO launcher: worker 3 died, it said '{OOM}'",
        f"INFO launcher: the reason is '{OOM}'",
        f"INFO launcher: results [RayTaskError('{OOM}'), None]",
        f'time="2026-11-21T03:57:04Z" level=INFO msg="{OOM}"',
        f'INFO launcher: {{"rank": 3, "message": "{OOM}"}}',
        f"INFO launcher: {{'rank': 3, 'message': '{OOM}'}}",
        f"'{OOM}' stopped the INFO logger",
    ],
)
def test_error_of_the_run_in_quotation_marks_is_a_match(line: str) -> None:
    assert "cuda-oom" in fired(line)
