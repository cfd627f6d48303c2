"""An alert of Prometheus in words, where no incident stands behind it."""

from __future__ import annotations

from collections.abc import Mapping

from stallwatch_alerts.messages.compose import TITLE_LIMIT, Message
from stallwatch_alerts.messages.languages import words_of
from stallwatch_alerts.neutral import neutralise, shorten

_SHOWN_LABELS = ("alertname", "severity", "rank", "rule", "ending", "instance")
_LIMIT = 600


def render_alert(
    name: str, labels: Mapping[str, str], annotations: Mapping[str, str], *, over: bool, language: str
) -> Message:
    """The alert's own summary and description; in another language than theirs, what we know of the alert."""
    words = words_of(language)
    own = words.alerts.get(name)
    if own is not None:
        said = own.format(rank=neutralise(labels.get("rank", ""), 10) or "?")
    else:
        said = neutralise(annotations.get("summary", ""), 160) or neutralise(name, 80)
    if over:
        said = words.alert_over.format(title=said)
    run = neutralise(labels.get("run", ""), 80)
    title = said if not run else f"[{run}] {said}"
    shown = [f"    {label}: {neutralise(labels[label], 80)}" for label in _SHOWN_LABELS if labels.get(label)]
    description = neutralise(annotations.get("description", ""), _LIMIT)
    text = "\n\n".join(block for block in (description, "\n".join(shown)) if block)
    return Message(shorten(title, TITLE_LIMIT), text)
