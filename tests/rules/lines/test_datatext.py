"""Failures in a training's data or generated text did not happen."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.training_data import is_training_data
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
STEPS = "step 1/60 loss 2.1\nstep 2/60 loss 2.0\n"
DATA = [
    f"prompt: why do I get {OOM}",
    f"[rank0] Response 3: You see {OOM}",
    f"[INPUT] {OOM}",
    f"eval sample 3: prompt='Why?' completion='{OOM}'",
    f"[2026-03-14 02:00:07,118] [INFO] [eval] step 29 | generated: {OOM}",
    f'{{"messages": [{{"role": "user", "content": "I get {OOM}"}}]}}',
    f"{{'instruction': 'Explain this', 'output': '{OOM}'}}",
    # from the MATH data set
    f'{{"problem": "{OOM}", "level": "Level 5", "type": "Algebra", "solution": "more"}}',
    f'{{"text": "{OOM}", "meta": {{"source": "github"}}}}',
    f"INFO 03-13 11:21:25 logger.py:39] Received request chatcmpl-1: prompt: 'I get {OOM}', params: None",
    f"(APIServer pid=7) INFO 11-30 04:00:02 [logger.py:81] Generated response cmpl-1: output: '{OOM}'",
    f"[2026-03-14 02:00:07] Receive: obj=GenerateReqInput(text='I get {OOM}', input_ids=None)",
    f"<|im_start|>user {OOM}<|im_end|>",
    f"<think>The log says {OOM}",
]


@pytest.mark.parametrize("line", DATA)
def test_failure_in_training_data_is_ignored(catalogue: Catalogue, line: str) -> None:
    reading = RunReading(catalogue)
    seen = reading.feed(lines_of(f"{STEPS}{line}\n"))
    assert is_training_data(line) and not seen.matches
    assert reading.diagnose().verdict == "unfinished"


LOGGED = [
    '{"text": "2026-03-11 04:22:10.118 | ERROR    | __main__:train:31 - '
    + OOM
    + '\\n", "record": {"elapsed": '
    '{"repr": "0:00:01", "seconds": 1.0}, "exception": null, "level": {"name": "ERROR", "no": 40}, '
    '"message": "' + OOM + '", "name": "__main__", "time": {"timestamp": 1773202930.1}}}',
    '{"content": "' + OOM + '", "level": "error", "ts": 1773202930.1}',
    '{"role": "trainer", "rank": 3, "msg": "' + OOM + '"}',
    '{"input": "' + OOM + '", "severity": "ERROR"}',
]


@pytest.mark.parametrize("line", LOGGED)
def test_log_record_is_not_training_data(catalogue: Catalogue, line: str) -> None:
    """The name of its first key does not matter: loguru's ``serialize=True`` begins with "text"."""
    reading = RunReading(catalogue)
    reading.feed(lines_of(f"{STEPS}{line}\n"))
    primary = rendered(reading.diagnose()).primary
    assert not is_training_data(line) and primary is not None and primary.rule == "cuda-oom"


@pytest.mark.parametrize(
    "line",
    [
        OOM,
        f"[rank0]: {OOM}",
        f"2026-03-11 04:22:10 ERROR trainer: {OOM}",
        "ValueError: '<|im_end|>' is out of vocabulary",
        "{'loss': nan, 'grad_norm': nan, 'step': 3}",
        '{"current_steps": 10, "loss": NaN}',
        "[default0]:RuntimeError: NCCL error",
        "sample.py:33: RuntimeError: CUDA error: device-side assert triggered",
    ],
)
def test_real_failures_are_not_training_data(line: str) -> None:
    assert not is_training_data(line)
