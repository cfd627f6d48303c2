"""Small version of the blame benchmark: no rank without fault is blamed with certainty.

The same holds if a host is silent.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from blame import FAULTS, KNOWN, LAYOUTS, Layout, hung, judged, summary, trials

from stallwatch_rules.stacks.folding import over_hosts

RANKS = 32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nearly_all_faults_are_found_and_no_innocent_rank_is_blamed(layout: str) -> None:
    results = [*trials(RANKS, 3, seed=7, layouts=[layout])]
    assert len(results) == 3 * len(FAULTS) * len(KNOWN)
    assert [result for result in results if result.verdict == "wrong"] == []
    counted = Counter(result.verdict for result in results if result.known == "recorder")
    assert counted["right"] >= 0.8 * counted.total()
    assert summary(results).startswith("  108 trials:")


@pytest.mark.parametrize("fault", FAULTS)
def test_silent_host_causes_no_wrong_blame(fault: str) -> None:
    layout = Layout(RANKS, **LAYOUTS["tp x pp x dp"](RANKS))
    trial = hung(layout, fault, random.Random(3))
    parts, silent = trial.hosts("recorder")
    for left in parts:
        found = over_hosts(
            {host: part for host, part in parts.items() if host != left}, silent=silent, world=RANKS
        )
        assert judged(trial, found) != "wrong" or found.confidence < 0.9
