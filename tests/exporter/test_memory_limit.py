from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from stallwatch_exporter.running.hostmemory import memory_limit


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/job/step", {"job/memory.max": "4096", "job/step/memory.max": "max"}, 4096),
        ("0::/job/step", {"job/memory.max": "4096", "job/step/memory.max": "1024"}, 1024),
        ("5:cpu:/x\n9:memory:/slurm/job", {"memory/slurm/job/memory.limit_in_bytes": "2048"}, 2048),
        ("0::/", {"memory.max": "512"}, 512),  # in a container
        ("0::/job", {}, None),
    ],
)
def test_the_tightest_limit_above_us_counts(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = memory_limit(tmp_path / "proc", tmp_path / "cgroup")
    assert found == (psutil.virtual_memory().total if limit is None else limit)
