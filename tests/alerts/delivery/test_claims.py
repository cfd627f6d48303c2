"""Claims of messages belong to processes that are still alive: real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from stallwatch_alerts.delivery import claims
from stallwatch_alerts.delivery.claims import holder_is_gone, new_claim

HOLDER = """
import sys
from stallwatch_alerts.delivery.claims import new_claim
print(new_claim(), flush=True)
sys.stdin.read()
"""


def test_claim_is_held_until_its_process_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        claim = holder.stdout.readline().strip()
        assert not holder_is_gone(claim)
        holder.kill()
    assert holder_is_gone(claim)


def test_reused_process_id_does_not_hold_a_claim() -> None:
    one, other = new_claim(), new_claim()
    assert len(one) == 32 and one != other and not holder_is_gone(one)
    born = int(psutil.Process().create_time())
    earlier = f"{one[:8]}{os.getpid():08x}{born - 1000:08x}{one[24:]}"
    assert holder_is_gone(earlier)


def test_claims_of_other_hosts_and_versions_are_not_judged() -> None:
    nobody = f"{2**22 + 1:08x}{'0' * 8}{'0' * 8}"
    assert holder_is_gone(new_claim()[:8] + nobody)
    elsewhere = "0" * 8 if new_claim()[0] != "0" else "1" * 8
    assert not any(map(holder_is_gone, (elsewhere + nobody, "", "f" * 31)))


def test_claims_expire_if_processes_cannot_be_identified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_here", lambda: "")
    one = new_claim()
    assert len(one) == 32 and not holder_is_gone(one)
