"""Chats that cannot be used: told with the place in the configuration at which their URL stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stallwatch.config import NOBODY, Config, ConfigError, place_in_route

if TYPE_CHECKING:
    from stallwatch_alerts.channels.errors import ChannelError
    from stallwatch_alerts.notice import Channel

_NOBODY = f"no chat is left that can be used: {NOBODY} of stalls and failures"


def unusable(config: Config) -> list[ConfigError]:
    """Every URL, also of routes, of which Apprise makes no channel. Nothing is sent.

    Where no other is there, the last one tells that nobody hears of anything.
    """
    from stallwatch_alerts.channels.remedies import remedy
    from stallwatch_alerts.masking import mask_url

    found = []
    placed = list(_placed(config))
    for file, line, key, url in placed:
        if (error := _refused(url)) is not None:
            said = f"{key}: {mask_url(url)} cannot be used: {error}"
            advice = remedy(error.chat, error.code, config["ui.language"])
            found.append(ConfigError(file, line, said, advice or "docs/chats.md lists the forms of URLs"))
    if found and len(found) == len(placed):
        file, line, *_ = placed[-1]
        found.append(ConfigError(file, line, _NOBODY, "mend it, then try stallwatch alerts test"))
    return found


def connecting(config: Config, url: str) -> Channel:
    """The chat behind a URL; what is wrong with it is told with its place and what to do."""
    from stallwatch_alerts.channels import open_channel
    from stallwatch_alerts.channels.errors import ChannelError
    from stallwatch_alerts.channels.remedies import remedy

    try:
        return open_channel(url)
    except ChannelError as error:
        advice = remedy(error.chat, error.code, config["ui.language"])
        alone = all(one == url or _refused(one) is not None for *_, one in _placed(config))
        parts = (str(error), advice, ", ".join(places(config, url)), _NOBODY if alone else "")
        said = "; ".join(filter(None, parts))
        raise ChannelError(said, chat=error.chat, code=error.code) from None


def _refused(url: str) -> ChannelError | None:
    """Why Apprise makes no channel of it."""
    from stallwatch_alerts.channels.apprise_channel import AppriseChannel
    from stallwatch_alerts.channels.errors import ChannelError

    try:
        AppriseChannel(url)
    except ChannelError as error:
        return error
    return None


def places(config: Config, url: str) -> list[str]:
    """Where the URL stands: file and line with the key, or the variable."""
    return [
        f"{file}:{line} ({key})" if line else f"{file} ({key})"
        for file, line, key, one in _placed(config)
        if one == url
    ]


def _placed(config: Config) -> Iterator[tuple[str, int | None, str, str]]:
    """File (or variable), line, key and URL."""
    source, colon, line = config.settings["alerts.urls"].source.rpartition(":")
    known = bool(colon) and line.isdigit()
    for url in config["alerts.urls"]:
        place = source if known else config.settings["alerts.urls"].source
        yield place, int(line) if known else None, "alerts.urls", url
    for number, route in enumerate(config["alerts.routes"]):
        for key, urls in (("urls", route.urls or ()), ("escalate_urls", route.escalate_urls)):
            for url in urls:
                at = place_in_route(config, number, key)
                yield str(config.file), at, f"alerts.routes[{number + 1}].{key}", url
