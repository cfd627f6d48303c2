"""The log of a vLLM server beside that of a trainer: its failures belong to no rank."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

STEPS = "".join(f"[rank0]: step {step}/60 loss {2 / step:.4f}\n" for step in range(1, 13))
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
SERVER = (
    "(APIServer pid=100) INFO 03-14 02:00:02 [api_server.py:1800] vLLM API server version 0.11.0\n"
    "(EngineCore_DP0 pid=211) ERROR 03-14 02:01:00 [core.py:710] EngineCore encountered a fatal error.\n"
    "(EngineCore_DP0 pid=211) ERROR 03-14 02:01:00 [core.py:710] "
)
ELASTIC = (
    "E0314 02:01:20.1 2210 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)"
    " local_rank: 0 (pid: 2341) of binary: python3\n"
)


@pytest.mark.parametrize(("start", "served"), [(SERVER, True), (STEPS, False)])
def test_failure_of_a_server_belongs_to_no_rank(
    catalogue: Catalogue, matcher: Matcher, start: str, served: bool
) -> None:
    reading = RunReading(catalogue, matcher)
    for name, text in {"train.log": STEPS + ELASTIC, "other.log": start + ILLEGAL}.items():
        reading.feed(LineReader(name).feed(text.encode()))
    primary = rendered(reading.diagnose()).primary
    assert primary is not None and primary.rule == "cuda-illegal-memory-access"
    assert primary.fixes[0].startswith("The failure happened in the vLLM server") == served
    assert (primary.step is None) == served and (not served or primary.rank is None)
