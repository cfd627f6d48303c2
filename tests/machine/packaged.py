"""The packaged rule pages, for test parameters. Fixtures use `catalogue` instead, which has a cache."""

from __future__ import annotations

from stallwatch_rules.pages.catalogue import load_catalogue

CATALOGUE = load_catalogue()
