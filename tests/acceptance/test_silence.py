"""Stallwatch sets a silence in a real Alertmanager."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from stallwatch_alerts.people import Silence
from stallwatch_alerts.prometheus.clients import Alertmanager


@pytest.mark.server
def test_alertmanager_accepts_a_silence(stack: Any) -> None:
    stack.start("alertmanager")
    now = time.time()
    wanted = Silence(now, now + 3600, run="sweep-[!ab]*.x?*", rule="cuda-oom", who="ann", comment="known")
    number = Alertmanager(stack.url("alertmanager")).silence(wanted)
    (found,) = json.loads(stack.get("alertmanager", "/api/v2/silences"))
    assert (found["id"], found["createdBy"], found["comment"]) == (number, "ann", "known")
    matchers = {item["name"]: (item["value"], item["isRegex"]) for item in found["matchers"]}
    assert matchers["rule"] == ("cuda-oom", False)
    assert matchers["run"] == (r"sweep\-[^ab].*\.x..*", True)
    assert matchers["alertname"] == ("Stallwatch.*", True)
