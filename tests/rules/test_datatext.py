"""What a training reads or generates may speak of failures: none of them happened."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.datatext import is_data
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
STEPS = "step 1/60 loss 2.1\nstep 2/60 loss 2.0\n"
DATA = [
    f"prompt: why do I get {OOM}",
    f"[rank0] Response 3: You see {OOM}",
    f"[INPUT] {OOM}",
    f'{{"messages": [{{"role": "user", "content": "I get {OOM}"}}]}}',
    f"{{'instruction': 'Explain this', 'output': '{OOM}'}}",
    f"<|im_start|>user {OOM}<|im_end|>",
    f"<think>The log says {OOM}",
]


@pytest.mark.parametrize("line", DATA)
def test_a_failure_in_data_is_none(catalogue: Catalogue, line: str) -> None:
    reading = RunReading(catalogue)
    seen = reading.feed(lines_of(f"{STEPS}{line}\n"))
    assert is_data(line) and not seen.matches
    assert reading.diagnose().verdict == "healthy"


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
def test_failures_are_none_of_the_data(line: str) -> None:
    assert not is_data(line)
