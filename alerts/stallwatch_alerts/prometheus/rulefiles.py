"""The rule files that Prometheus loads: two that are written by hand, and one made from the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stallwatch_alerts.prometheus.catalogue_rules import catalogue_rules

if TYPE_CHECKING:
    from stallwatch_rules.pages.catalogue import Catalogue

_HERE = Path(__file__).resolve().parent
_PLACES = (_HERE / "files", _HERE.parents[2] / "rules" / "prometheus")  # installed, or in a checkout
WRITTEN_BY_HAND = ("recording.yml", "alerting.yml")
FROM_CATALOGUE = "catalogue.yml"


def rule_files(catalogue: Catalogue) -> dict[str, str]:
    """Each rule file's text by its name; a `FileNotFoundError` where the installation lacks one."""
    place = next((place for place in _PLACES if (place / WRITTEN_BY_HAND[0]).is_file()), _PLACES[0])
    texts = {name: (place / name).read_text(encoding="utf-8") for name in WRITTEN_BY_HAND}
    return {**texts, FROM_CATALOGUE: catalogue_rules(catalogue)}
