"""What to do about a message that did not arrive.

``advice.json`` names the advice for each chat's error codes, which are those of the documentation that the
chats' modules name; ``any`` has those of HTTP and the network. Other codes are names of advice themselves.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from stallwatch_rules.locale import say, templates


@cache
def _advice() -> dict[str, dict[str, str]]:
    return msgspec.json.decode(
        Path(__file__).with_name("advice.json").read_bytes(), type=dict[str, dict[str, str]]
    )


def remedy(chat: str, code: str, language: str) -> str:
    """Return what to do; empty if there is no advice for the code."""
    known = _advice()
    name = known.get(chat, {}).get(code) or known["any"].get(code, code)
    if f"chat-{name}" not in templates("en", "alerts"):
        name = "down" if code.startswith("http-5") else ""
    return say(f"alerts.chat-{name}", language) if name else ""
