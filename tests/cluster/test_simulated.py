"""Some simulated hangs, through real coordinators over HTTP: one incident, one message."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cluster import FAULTS, WATCHERS, Trial, simulated


@pytest.fixture(scope="module")
def trials() -> dict[str, Trial]:
    planned: Sequence[tuple[int, str]] = list(enumerate([*FAULTS, *WATCHERS]))
    # Only the trial of that name loses reports, and the loss may cost a second message.
    return {trial.fault: trial for trial in simulated(planned, seed=2, hosts=8, per_host=4, jobs=3, lost=0.0)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_hang_is_one_incident_with_one_message(fault: str, trials: dict[str, Trial]) -> None:
    trial = trials[fault]
    assert (trial.incidents, trial.openings, trial.alone) == (1, 1, 0), trial
    assert trial.verdict != "wrong", trial


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", WATCHERS)
def test_faults_of_the_watchers_do_not_prevent_the_message(fault: str, trials: dict[str, Trial]) -> None:
    trial = trials[fault]
    assert trial.incidents == 1, trial
    assert trial.openings in (1, 2), trial
    assert trial.verdict != "wrong", trial
