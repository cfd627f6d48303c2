"""How long a message waits for its next try, and when it is given up."""

from __future__ import annotations

GIVE_UP_AFTER = 86400.0  #: seconds for which a message is tried
_TRIES_AT_LEAST = 30  # where nobody sent for a day, a message is old before its first try
LONGEST_PAUSE = 3600.0  #: a chat that asks for a longer one is asked again after this
_FIRST, _LONGEST = 1.0, 60.0


def wait_after(failures: int, chance: float, asked: float | None = None) -> float:
    """Seconds until the next try: doubling up to a minute, and what the chat asked for where it is longer.

    `chance` in 0..1 spreads those that were refused together; it never shortens what was asked for.
    """
    full = min(_LONGEST, _FIRST * 2.0 ** min(failures - 1, 30))
    waited = full * (0.5 + 0.5 * chance)
    return waited if asked is None else min(LONGEST_PAUSE, max(waited, asked + waited - 0.5 * full))


def is_expired(created_at: float, attempts: int, now: float) -> bool:
    """Whether to give a message up that was just refused for the time `attempts`. Steady times."""
    return attempts >= _TRIES_AT_LEAST and now - created_at >= GIVE_UP_AFTER
