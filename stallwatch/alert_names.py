"""Whether the names in alert routes and silences are of this catalogue: a misspelt one would never fit."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from stallwatch.config import Config, ConfigError, place_in_route
from stallwatch.handover import alert_settings
from stallwatch_alerts.routing import Route

if TYPE_CHECKING:
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_rules.pages.catalogue import Catalogue

_NEAR = 3


def known_rules(catalogue: Catalogue) -> list[str]:
    """Every rule that an incident may have."""
    from stallwatch_exporter.incident import RANK_GONE, UNKNOWN_FAILURE

    return [*sorted(catalogue.pages), RANK_GONE, UNKNOWN_FAILURE]


def near_rules(pattern: str, known: Sequence[str]) -> list[str] | None:
    """Rules whose names are like one that no rule has; ``None`` where one has it.

    What the relay tells of an alert without an incident has the alert's name instead, such as
    ``StallwatchAgentGone``; those of a user's own Prometheus are not known here.
    """
    if pattern.startswith("Stallwatch") or any(fnmatchcase(rule, pattern) for rule in known):
        return None
    return difflib.get_close_matches(pattern.strip("*?"), known, n=_NEAR)


def misnamed(config: Config, catalogue: Catalogue) -> list[ConfigError]:
    """Families and rules in ``[[alerts.routes]]`` that the catalogue does not have, with their lines."""
    routes = config["alerts.routes"] if names_any(config) else ()
    rules, families = known_rules(catalogue), sorted({page.family for page in catalogue.pages.values()})
    found = []
    for number, route in enumerate(routes):
        for name in route.rules:
            near = near_rules(name, rules)
            if near is not None:
                found.append(_error(config, number, "rules", f"no rule {name!r} is known", near))
        for name in route.families:
            if name not in families:
                near = difflib.get_close_matches(name, families, n=_NEAR) or families
                found.append(_error(config, number, "families", f"no family {name!r} is known", near))
    return found


def checked_settings(config: Config, catalogue: Catalogue, tell: Callable[[str], None]) -> AlertSettings:
    """The settings for whoever tells of incidents; what is misnamed in routes is told first.

    Where only routes have chats, all of these hear what then fits no route: nobody would.
    """
    settings = alert_settings(config)
    problems = misnamed(config, catalogue)
    for problem in problems:
        tell(str(problem))
    if problems and not settings.urls:
        tell("until then what fits no route is told to all chats")
        return replace(settings, routes=(*settings.routes, Route(broken=True)))
    return settings


def names_any(config: Config) -> bool:
    """Whether any route names families or rules."""
    return any(route.families or route.rules for route in config["alerts.routes"])


def _error(config: Config, number: int, key: str, message: str, near: Sequence[str]) -> ConfigError:
    remedy = f"did you mean {', '.join(near)}?" if near else "stallwatch rules list shows them"
    line = place_in_route(config, number, key)
    return ConfigError(str(config.file), line, f"alerts.routes[{number + 1}].{key}: {message}", remedy)
