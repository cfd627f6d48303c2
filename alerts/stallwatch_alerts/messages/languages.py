"""The sentences of each language."""

from __future__ import annotations

from stallwatch_alerts.messages import en, zh
from stallwatch_alerts.messages.words import Words


def words_of(language: str) -> Words:
    """Those of ``zh`` and its kinds, else the English ones."""
    return zh.WORDS if language.startswith("zh") else en.WORDS
