"""Make text from logs and names safe for Markdown and for the HTML subset of Plotly.

Log lines are shown by ``st.code`` and ``st.text``, which interpret neither format. This module is for other
texts that contain parts of logs, such as a rule's advice with captures, or a heading with a run's name.
"""

from __future__ import annotations

import html
import re
from typing import Any

from stallwatch_rules.locale import LANGUAGES, render
from stallwatch_rules.pages.fixes import fixes_for
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.text.controls import TERMINAL_CODES, for_spreadsheet, without_controls

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
# GFM turns bare addresses into links after it resolves escapes. A word joiner inside the address prevents
# this conversion.
_ADDRESS = re.compile(r"(?i)(https?|ftp|mailto|xmpp|www)([.:])|(@)")
_CODE = re.compile(r"(`[^`\n]+`)")
_CODE_PARTS = re.compile(r"(```.*?```|~~~.*?~~~|`[^`\n]+`)", re.DOTALL)
# Matches the additions of Streamlit to Markdown (formulas, :red[…], :material/…:, :smile:), and images, which
# browsers would fetch.
_ADDED = re.compile(r"(?<!\\)(?:\$|:(?=[\w+-]+[:\[/])|!(?=\[))")
_MOST_WORDS = 4000  #: maximum number of characters of one inline text
_MOST_CELL = 500  #: maximum number of characters of a table cell
_MOST_LINE = 2000  #: maximum number of characters of a line of verbatim text
_MOST_LINES = 2000


def plain(text: str, most: int = _MOST_WORDS) -> str:
    """Return `text` as one line of at most `most` characters, without control and direction characters."""
    return _cut(_seen(" ".join(text[: 8 * most].split())), most)


def cell(text: str) -> str:
    """Return `text` as `plain` does, and make it safe for a table cell that users can save as CSV."""
    return for_spreadsheet(plain(text, _MOST_CELL))


def verbatim(text: str) -> str:
    """Return lines for ``st.code`` and ``st.text``, without color codes and control or direction characters.

    Keep only the beginning of each long line. If there are too many lines, keep only the last lines.
    """
    lines = _seen(text.replace("\r\n", "\n")).split("\n")
    return "\n".join(_cut(line, _MOST_LINE) for line in lines[-_MOST_LINES:])


def markdown(text: str) -> str:
    """Return Markdown that shows `text` literally, with its markup, links, formulas, and HTML escaped."""
    joined = _ADDRESS.sub(lambda m: f"{m[1] or ''}{m[2] or m[3]}\u2060", plain(text))
    return _PUNCTUATION.sub(r"\\\1", joined)


def advice(text: str) -> str:
    """Return Markdown as `markdown` does, but keep backticked spans, such as keys and files, as code."""
    parts = _CODE.split(text)
    return "".join(
        f"`{plain(part[1:-1])}`" if index % 2 else _edged(part) for index, part in enumerate(parts)
    )


def prose(text: str, page: RulePage | None) -> str:
    """Return sentences as safe Markdown.

    Sentences of the rule page keep their Markdown. Other sentences are escaped as in `advice`. Rule pages
    are local, reviewed files, but a diagnosis can come from any source.
    """
    if page is not None:
        sections, text_alone = page.sections, text.strip()
        sentences = (sections.what, sections.why, sections.harmless, sections.zh_what, sections.zh_why)
        if text_alone in sentences or text_alone in _fixes_of(page):
            return escaped_page(text_alone)
    return advice(text)


def _fixes_of(page: RulePage) -> set[str]:
    """Return the page's fixes. Fixes for certain versions are included with and without the condition."""
    fixes: list[Any] = list(fixes_for(page, {}))
    fixes += [fix.params["fix"] for fix in fixes if "fix" in fix.params]
    return {render(fix, language).strip() for fix in fixes for language in LANGUAGES}


def escaped_page(text: str) -> str:
    """Return a rule page's Markdown, with escapes for markup that only Streamlit has, such as ``$``."""
    parts = _CODE_PARTS.split(text)
    return "".join(part if index % 2 else _ADDED.sub(r"\\\g<0>", part) for index, part in enumerate(parts))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _seen(text: str) -> str:
    """Return the text without color codes, control characters, and direction characters."""
    # Lone surrogates are replaced, because UTF-8 cannot encode them.
    return without_controls(TERMINAL_CODES.sub("", text.encode("utf-8", "replace").decode("utf-8")))


def _edged(part: str) -> str:
    """Return the escaped text. If `part` starts or ends with spaces, keep one space at that end."""
    inner = markdown(part)
    if not inner:
        return " " if part else ""
    return (" " if part[:1].isspace() else "") + inner + (" " if part[-1:].isspace() else "")


def label(text: str, longest: int = 60) -> str:
    """Return `text` for a Plotly label: shortened and HTML-escaped, because Plotly interprets some HTML."""
    return html.escape(plain(text, longest), quote=False)
