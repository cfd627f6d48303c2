"""What those who deliver are given: how a chat is reached, and who is told of what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stallwatch_alerts.delivery.channel import Channel, apprise_channel
from stallwatch_alerts.delivery.courier import Retry
from stallwatch_exporter import steady


@dataclass(frozen=True)
class Ways:
    """`report` hears what fails, without secrets; `delivered` each URL and the keys of what it was told."""

    connect: Callable[[str], Channel] = apprise_channel
    report: Callable[[str], None] = lambda _: None
    delivered: Callable[[str, Sequence[str]], None] = lambda _url, _keys: None
    clock: Callable[[], float] = steady.now
    retry: Retry = field(default_factory=Retry)  #: for messages that live in memory
    settled: Callable[[str, Sequence[str]], bool] = lambda _url, _keys: False  #: see ``Sender``
