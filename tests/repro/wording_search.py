"""Search packages for the texts of rules, in separate processes: torch alone takes half a minute."""

from __future__ import annotations

from collections.abc import Sequence

from verify_rules import look
from wordings.files import Sources
from wordings.packages import installed
from wordings.search import same_package

from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.page import RulePage


def claimed(package: str) -> list[RulePage]:
    """Return the stable rules that name the package."""
    return [
        page
        for page in load_catalogue().pages.values()
        if page.status == "stable" and any(same_package(item.package, package) for item in page.emitted_by)
    ]


def missing(pages: Sequence[RulePage], package: str, sources: Sources) -> list[str]:
    """Return the texts of the rules that the sources do not contain."""
    return [
        f"{item.rule}: {item.pattern}" for item in look(pages, package, sources) if item.state == "missing"
    ]


def missing_of_installed(package: str) -> tuple[str, list[str]]:
    """Return the installed version and the missing texts. Raises `SourceError` if it is not installed."""
    sources = installed(package)
    return str(sources.version or ""), missing(claimed(package), package, sources)
