"""Logs that other engines read get the same diagnosis as from a single process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import pytest

import stallwatch
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_logs.parallel_reading import Parallel
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.report.json import to_json

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total of 79 GiB"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write logs of six ranks on three hosts, one of which runs out of memory."""
    folder = tmp_path_factory.mktemp("logs")
    for rank in range(6):
        lines = [
            f"2026-11-20 03:00:{step:02d} [Rank {rank}] step={step} loss={2 / step:.4f}"
            for step in range(1, 50)
        ]
        path = folder / f"n{rank // 2}" / f"rank_{rank}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([*lines, *([OOM] if rank == 3 else [])]) + "\n")
    return folder


def report(logs: Path, catalogue: Catalogue, executor: Executor | None = None) -> bytes:
    """Return the report as JSON, and check that the progress reached the end."""
    seen: list[tuple[int, int]] = []
    options = Options(
        catalogue,
        progress=lambda read, of: seen.append((read, of)),
        parallel=Parallel(executor=executor),
    )
    diagnosis, problems = diagnose_paths([str(logs)], options)
    assert not problems
    assert seen[-1][0] == seen[-1][1]
    diagnosis.stats.seconds = 0.0
    return to_json(diagnosis, schema=2)


@pytest.fixture(scope="module")
def expected(logs: Path, catalogue: Catalogue) -> Iterator[bytes]:
    """Yield the report of a single process."""
    found = report(logs, catalogue)
    assert b'"rank": 3' in found
    yield found


def test_process_pool_gives_the_same_diagnosis(logs: Path, catalogue: Catalogue, expected: bytes) -> None:
    with ProcessPoolExecutor(1) as executor:
        assert report(logs, catalogue, executor) == expected


def test_dask_gives_the_same_diagnosis(logs: Path, catalogue: Catalogue, expected: bytes) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert report(logs, catalogue, client.get_executor()) == expected


def test_ray_gives_the_same_diagnosis(logs: Path, catalogue: Catalogue, expected: bytes) -> None:
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with stallwatch.ray_executor(max_retries=0) as executor:
            assert report(logs, catalogue, executor) == expected
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(len, "")
    finally:
        ray.shutdown()
