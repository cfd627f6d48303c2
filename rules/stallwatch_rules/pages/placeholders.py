"""What ``stallwatch rules new`` leaves for a page's author to write: told by the check, never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

TO_BE_WRITTEN = "To be written"


def written(text: str) -> str:
    """The text; nothing where it still is a draft's placeholder."""
    return "" if text.startswith(TO_BE_WRITTEN) else text


def why_of(page: RulePage, language: str = "en") -> str:
    """What the page says of the cause, for a report."""
    chinese = language.startswith("zh")
    return written((chinese and page.sections.zh_why) or page.sections.why)


def unwritten(page: RulePage) -> list[str]:
    """The headings of the page's sections that are still placeholders."""
    from stallwatch_rules.pages.fixes import parse_fix  # here: it needs this module

    sections = page.sections
    fixes = [parse_fix(fix).text for fix in (*sections.fixes, *sections.zh_fixes)]
    headings = {
        "What happened": [sections.what, sections.zh_what],
        "Why": [sections.why, sections.zh_why],
        "Fix": fixes,
        "When it is harmless": [sections.harmless],
    }
    return [name for name, texts in headings.items() if any(text and not written(text) for text in texts)]
