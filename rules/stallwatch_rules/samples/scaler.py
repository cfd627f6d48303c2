"""DeepSpeed's dynamic loss scalers: what they skip and where the scale goes."""

from __future__ import annotations

from stallwatch_rules.samples.found import Found
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, number

_ATTEMPTED = lazy(r"Attempted loss scale: (" + NUMBER + r")(?:, reducing to (" + NUMBER + r"))?")
_RESCALED = lazy(r"(?:Reducing|Increasing) dynamic loss scale from \S+ to (" + NUMBER + r")")


def from_loss_scaler(text: str) -> Found | None:
    """DeepSpeed's dynamic loss scalers. A skipped step is counted once: ZeRO says ``OVERFLOW!``; the
    optimizers without ZeRO say ``Grad overflow on iteration …`` and repeat it in other words."""
    values: dict[str, float] = {}
    if "OVERFLOW!" in text or "Grad overflow on iteration" in text:
        if "No Grad" in text:
            return None
        values["overflow"] = 1.0
    if "loss scale" in text:
        found = _ATTEMPTED.search(text)
        if found:
            values["loss_scale"] = number(found[2] or found[1])
        else:
            found = _RESCALED.search(text)
            if found:
                values["loss_scale"] = number(found[1])
    return Found(None, None, values, "") if values else None
