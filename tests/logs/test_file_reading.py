"""Several processes read a run's files; the combined result equals that of one process."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_logs.parallel_reading import Parallel, default_workers
from stallwatch_rules.pages.catalogue import Catalogue

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Write the logs of four ranks, one of which failed, and a file that is not a log."""
    for rank in range(4):
        lines = [f"[2026-05-02 09:00:{step % 60:02d},000] step {step}/900 loss 1.5" for step in range(1, 60)]
        if rank == 2:
            lines += ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines) + "\n")
    (tmp_path / "model.log").write_bytes(b"\x7fELF" + bytes(range(256)) * 40)
    return sorted(map(str, tmp_path.glob("*.log")))


def test_own_processes_give_the_same_diagnosis(catalogue: Catalogue, logs: list[str]) -> None:
    alone, problems = diagnose_paths(logs, Options(catalogue))
    messages: list[tuple[int, int]] = []
    together, same_problems = diagnose_paths(
        logs,
        Options(
            catalogue,
            parallel=Parallel(workers=2, worth=0),
            progress=lambda done, total: messages.append((done, total)),
        ),
    )
    together.stats.seconds = alone.stats.seconds
    assert together == alone
    assert same_problems == problems
    assert len(problems) == 1
    assert messages[-1][0] == messages[-1][1] > 0
    assert alone.primary is not None
    assert (alone.primary.rule, alone.primary.rank) == ("cuda-oom", 2)


@pytest.mark.parametrize("folder", sorted(path.name for path in RECORDINGS.iterdir()))
def test_given_executor_gives_the_same_diagnosis(catalogue: Catalogue, folder: str) -> None:
    paths = [str(RECORDINGS / folder)]
    alone, _ = diagnose_paths(paths, Options(catalogue))
    with ThreadPoolExecutor(2) as executor:
        together, _ = diagnose_paths(paths, Options(catalogue, parallel=Parallel(executor=executor)))
    together.stats.seconds = alone.stats.seconds
    assert together == alone


def test_small_inputs_are_read_without_processes(
    catalogue: Catalogue, logs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Executor:
        raise AssertionError("no process should be started")

    monkeypatch.setattr("stallwatch_logs.parallel_reading._processes", refuse)
    diagnosis, _ = diagnose_paths(logs, Options(catalogue, parallel=Parallel(workers=default_workers())))
    assert diagnosis.verdict == "failed"


@pytest.mark.parametrize("lead", ["", "gpu07: ", "[node-2/rank-3] "])
def test_lines_with_a_common_prefix_are_counted_in_a_long_file(
    tmp_path: Path, catalogue: Catalogue, lead: str
) -> None:
    """The rule's patterns are anchored at the start of the line."""
    lines = [f"{{'loss': 2.5, 'epoch': {at / 1000}}} {'.' * 80}" for at in range(4000)]
    for at in range(300, 3300, 3):
        lines[at] = "KeyError: 'param_groups'"
    path = tmp_path / "train.log"
    path.write_text("".join(f"{lead}{line}\n" for line in lines))
    found, _ = diagnose_paths([path], Options(catalogue))
    assert {finding.rule: finding.count for finding in found.findings}["resume-checkpoint-failed"] == 1000
