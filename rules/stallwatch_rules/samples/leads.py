"""What may stand before the metrics in their line: a logger's lead, no source code and no prose."""

from __future__ import annotations

import re
from functools import lru_cache

# A logger's lead, and words such as "epoch 3, rank 0".
_LEAD = re.compile(
    r"(?:.{0,160}(?: - |>> ?|\| |\][: ]\s*|: |, |\t))?"
    r" {0,3}(?:(?:\b(?:train(?:ing)?|epochs?|rank|gpu|worker|node|ppo|global|local|at|info"
    r"|\d[\d-]*T\d[\d:.,]*(?:Z|\+\d\d:?\d\d)?|\d[\d.]*s?)\b|\[)"
    r"[\s:=：,，|/\[\]()-]*)*",
    re.IGNORECASE,
)
_CODE = re.compile(r"""["'`{};#\\]|\((?!\d|train\))|\b(?:return|def|for|if|self)\b""")

ZEROED = str.maketrans("123456789", "0" * 9)


def leads(before: str) -> bool:
    """Whether this may stand before a metric. Which digits it holds does not matter."""
    return not before or (len(before) <= 200 and _leads_zeroed(before.translate(ZEROED)))


@lru_cache(maxsize=1024)  # loggers' leads differ in their digits only
def _leads_zeroed(before: str) -> bool:
    return _CODE.search(before) is None and _LEAD.fullmatch(before) is not None
