"""Relays over real HTTP, with a real database and a real chat."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallwatch_alerts.relay.relay import Relay
from stallwatch_alerts.settings import AlertSettings, RelaySettings
from stallwatch_alerts.store import IncidentStore
from stallwatch_rules.pages.catalogue import Catalogue

sys.path.insert(0, str(Path(__file__).parent))

from alertmanager import Post  # the module is beside this file


@pytest.fixture
def store(tmp_path: Path) -> Iterator[IncidentStore]:
    made = IncidentStore.at_home(tmp_path)
    yield made
    made.close()


@pytest.fixture
def start(store: IncidentStore, catalogue: Catalogue, chat_server: Any) -> Iterator[Callable[..., Post]]:
    """Yield a function that starts relays, by default with the local chat."""
    running: list[Relay] = []

    def make(*, on: IncidentStore = store, **settings: Any) -> Post:
        alerts = {"urls": (chat_server.url,), **settings.pop("alerts", {})}
        given = RelaySettings(port=0, alerts=AlertSettings(**alerts), **settings)
        running.append(Relay(given, on, catalogue))
        return Post(running[-1])

    yield make
    for relay in running:
        relay.close()
