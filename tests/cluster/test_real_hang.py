"""A real hang over three hosts of a Slurm cluster causes one message, which names the rank and the host."""

from __future__ import annotations

import pytest
import slurm
from cluster_lab import Cluster, Start


@pytest.mark.repro
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(slurm.lacking()), reason=slurm.lacking())
def test_sleeping_rank_is_named_in_one_message() -> None:
    start = Start(0, "srun", "dp", private=False, kinds=("sleep",), ranks=(1,))
    cluster = Cluster(start, seed=1, hosts=3, first=0, settle=6.0)
    try:
        (hang,) = cluster.hangs()
    finally:
        cluster.close()
    assert not hang.broken
    assert hang.openings == 1, hang.messages
    assert hang.named and not hang.wrong, hang
    (opening,) = [message for message in hang.messages if message["status"] == "open"]
    assert "in score" in f"{opening['title']} {opening['text']}"
    assert hang.host in opening["text"]
