"""Counts in English sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 line``, ``2,000 lines``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
