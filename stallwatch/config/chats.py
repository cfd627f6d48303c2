"""Find chats and routes that cannot be used, and report where the configuration defines them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from stallwatch.config.handover import alert_settings
from stallwatch.config.loading import NO_NOTIFICATION, Config, ConfigError, line_of, line_of_route
from stallwatch_alerts.routing import Route

if TYPE_CHECKING:
    from stallwatch_alerts.channels.errors import ChannelError
    from stallwatch_alerts.notice import Channel
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_rules.pages.catalogue import Catalogue


_NEAR = 3


def known_rules(catalogue: Catalogue) -> list[str]:
    """Return the IDs of all rules that an incident can have, including the rules in unloaded packs."""
    from stallwatch_exporter.incident import HOST_GONE, HOST_MISSING, RANK_GONE, UNKNOWN_FAILURE
    from stallwatch_rules.pages.catalogue import packs_by_rule

    without_page = (RANK_GONE, HOST_GONE, HOST_MISSING, UNKNOWN_FAILURE)
    return [*sorted({*catalogue.pages, *packs_by_rule()}), *without_page]


def near_rules(pattern: str, known: Sequence[str]) -> list[str] | None:
    """Return the rules with IDs similar to `pattern`, or ``None`` if `pattern` matches the ID of a rule.

    A relay's message about an alert without an incident has the alert's name as its rule, such as
    ``StallwatchAgentGone``. This function cannot check such names, because users can add alerts.
    """
    if pattern.startswith("Stallwatch") or any(fnmatchcase(rule, pattern) for rule in known):
        return None
    return difflib.get_close_matches(pattern.strip("*?"), known, n=_NEAR)


def misnamed(config: Config, catalogue: Catalogue) -> list[ConfigError]:
    """Return an error for each family and rule in ``[[alerts.routes]]`` that is not in the catalogue."""
    routes = config["alerts.routes"] if names_any(config) else ()
    rules, families = known_rules(catalogue), sorted({page.family for page in catalogue.pages.values()})
    found = []
    for number, route in enumerate(routes):
        for name in route.rules:
            near = near_rules(name, rules)
            if near is not None:
                found.append(_error(config, number, "rules", f"unknown rule {name!r}", near))
        for name in route.families:
            if name not in families:
                near = difflib.get_close_matches(name, families, n=_NEAR) or families
                found.append(_error(config, number, "families", f"unknown family {name!r}", near))
    return found


def not_loaded(config: Config, catalogue: Catalogue) -> list[ConfigError]:
    """Return an error for each rule in ``[[alerts.routes]]`` that is only in a pack that is not loaded."""
    from stallwatch_rules.pages.catalogue import packs_by_rule

    found, packs = [], packs_by_rule()
    for number, route in enumerate(config["alerts.routes"]):
        for name in route.rules:
            pack = next((pack for rule, pack in packs.items() if fnmatchcase(rule, name)), None)
            if pack is not None and not any(fnmatchcase(rule, name) for rule in catalogue.pages):
                message = f"rule {name!r} is in the pack {pack}, which is not loaded"
                remedy = f'write packs = ["{pack}"] under [rules], or use --rules-pack {pack}'
                found.append(_error(config, number, "rules", message, remedy=remedy))
    return found


def checked_settings(config: Config, catalogue: Catalogue, notice: Callable[[str], None]) -> AlertSettings:
    """Return the settings for the senders of messages. Report wrong names in routes to `notice`.

    If chats are configured only in routes and a name is wrong, messages that match no route are sent to all
    these chats. Otherwise, no chat would receive these messages.
    """
    settings = alert_settings(config)
    problems = misnamed(config, catalogue)
    for problem in [*problems, *not_loaded(config, catalogue)]:
        notice(str(problem))
    if problems and not settings.urls:
        notice("until the routes are corrected, messages that match no route go to all chats")
        return replace(settings, routes=(*settings.routes, Route(broken=True)))
    return settings


def names_any(config: Config) -> bool:
    """Return whether any route contains names of families or rules."""
    return any(route.families or route.rules for route in config["alerts.routes"])


def _error(
    config: Config, number: int, key: str, message: str, near: Sequence[str] = (), remedy: str = ""
) -> ConfigError:
    shown = "to list all rules, run stallwatch rules list"
    remedy = remedy or (f"did you mean {', '.join(near)}?" if near else shown)
    line = _line(config, number, key)
    return ConfigError(str(config.file), line, f"alerts.routes[{number + 1}].{key}: {message}", remedy)


def _line(config: Config, number: int, key: str) -> int | None:
    return line_of_route(config, number, key) or line_of(config, "alerts", "routes")


_NO_DESTINATION = f"no usable chat is left: {NO_NOTIFICATION} of stalls and failures"


def unusable(config: Config) -> list[ConfigError]:
    """Return an error for every URL that Apprise rejects, including URLs in routes. No message is sent.

    If no usable URL is left, the last error in the list says that no chat is notified.
    """
    from stallwatch_alerts.channels.errors import remedy
    from stallwatch_alerts.masking import mask_url

    found = []
    placed = list(_placed(config))
    for place, key, url in placed:
        if (error := _refused(url)) is not None:
            message = f"{key}: {mask_url(url)} cannot be used: {error}"
            advice = remedy(error.chat, error.code, config["ui.language"])
            advice = advice or "see the list of URL formats in docs/chats.md"
            found.append(ConfigError(place, None, message, advice))
    if found and len(found) == len(placed):
        advice = "correct the URLs, then run stallwatch alerts test"
        found.append(ConfigError(placed[-1][0], None, _NO_DESTINATION, advice))
    return found


def connecting(config: Config, url: str) -> Channel:
    """Return the channel for a URL. An error contains the URL's location in the configuration and a fix."""
    from stallwatch_alerts.channels import open_channel
    from stallwatch_alerts.channels.errors import ChannelError, remedy

    try:
        return open_channel(url)
    except ChannelError as error:
        advice = remedy(error.chat, error.code, config["ui.language"])
        alone = all(other == url or _refused(other) is not None for *_, other in _placed(config))
        parts = (str(error), advice, ", ".join(places(config, url)), _NO_DESTINATION if alone else "")
        message = "; ".join(filter(None, parts))
        raise ChannelError(message, chat=error.chat, code=error.code) from None


def _refused(url: str) -> ChannelError | None:
    """Return the error for a URL that Apprise rejects, or ``None`` if Apprise accepts the URL."""
    from stallwatch_alerts.channels.apprise_channel import AppriseChannel
    from stallwatch_alerts.channels.errors import ChannelError

    try:
        AppriseChannel(url)
    except ChannelError as error:
        return error
    return None


def places(config: Config, url: str) -> list[str]:
    """Return where the URL is configured: a file and line, or an environment variable, with the key."""
    return [f"{place} ({key})" for place, key, placed in _placed(config) if placed == url]


def _placed(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield, for every chat, the location of its URL (file and line, or variable), the key, and the URL."""
    for url in config["alerts.urls"]:
        yield config.settings["alerts.urls"].source, "alerts.urls", url
    for number, route in enumerate(config["alerts.routes"]):
        for key, urls in (("urls", route.urls or ()), ("escalate_urls", route.escalate_urls)):
            line = _line(config, number, key)
            place = f"{config.file}:{line}" if line else str(config.file)
            for url in urls:
                yield place, f"alerts.routes[{number + 1}].{key}", url
