"""Alertmanager's API, as far as people's silences need it (v2, ``api/v2/openapi.yaml`` in its source)."""

from __future__ import annotations

import json
import re
import urllib.request
from datetime import datetime, timezone
from typing import Any

from stallwatch_alerts.people import Silence
from stallwatch_rules.text.lazy import lazy

_TIMEOUT = 10.0
_WILD = lazy(r"(\*|\?|\[[^\]]+\])")


def silence_there(url: str, silence: Silence) -> str:
    """Silence the same alerts in the Alertmanager at `url`; the silence's id there.

    An `OSError` where it cannot be reached or refuses. A silence that fits everything is for all of ours.
    """
    body = {
        "matchers": _matchers(silence),
        "startsAt": _time(silence.starts_at),
        "endsAt": _time(silence.ends_at),
        "createdBy": silence.who or "stallwatch",
        "comment": silence.comment or "stallwatch alerts silence",
    }
    request = urllib.request.Request(
        f"{url.rstrip('/')}/api/v2/silences",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        return str(json.load(answer)["silenceID"])


def _matchers(silence: Silence) -> list[dict[str, Any]]:
    found = [_matcher("alertname", "Stallwatch*")]
    for name in ("run", "rule", "severity"):
        if wanted := getattr(silence, name):
            found.append(_matcher(name, wanted))
    return found


def _matcher(name: str, pattern: str) -> dict[str, Any]:
    if not _WILD.search(pattern):
        return {"name": name, "value": pattern, "isRegex": False, "isEqual": True}
    return {"name": name, "value": _expression(pattern), "isRegex": True, "isEqual": True}


def _expression(pattern: str) -> str:
    """For RE2, which Alertmanager uses and anchors: ``fnmatch.translate`` writes what only Python reads."""
    known = {"*": ".*", "?": "."}
    parts = _WILD.split(pattern)
    return "".join(
        (known.get(part) or part.replace("[!", "[^", 1)) if at % 2 else re.escape(part)
        for at, part in enumerate(parts)
    )


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat()
