"""What is wrong with chats and routes beyond what reading the configuration finds, told at once."""

from __future__ import annotations

from stallwatch.commands.context import catalogue_of, tell_all
from stallwatch.config import Config


def tell_wrong_alerts(loaded: Config) -> bool:
    """Tell of names in routes that no rule page has, and of URLs of which no channel can be made.

    Returns whether there are any.
    """
    if not (loaded["alerts.urls"] or loaded["alerts.routes"]):
        return False  # the usual case needs nothing of what is imported below
    from importlib.util import find_spec

    from stallwatch.alert_names import misnamed, names_any
    from stallwatch.alert_urls import unusable
    from stallwatch.handover import alert_settings

    found = misnamed(loaded, catalogue_of(loaded)) if names_any(loaded) else []
    if alert_settings(loaded).all_urls and find_spec("apprise") is not None:
        found += unusable(loaded)
    tell_all(found)
    return bool(found)
