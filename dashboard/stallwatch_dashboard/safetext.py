"""Text from logs and from names, made safe for places that read Markdown or Plotly's small HTML.

Log text itself is shown by ``st.code`` and ``st.text``, which read neither. This is for the sentences around
it: a rule's advice with captures in it, a run's name in a heading.
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
# GFM links bare addresses after it has undone the escapes; a word joiner inside keeps them text.
_ADDRESS = re.compile(r"(?i)(https?|ftp|mailto|xmpp|www)([.:])|(@)")
_SENTENCE = re.compile(r"[.!?](?=\s+[A-Z`\u201c(]|\s*$)|。")
_CODE_WHOLE = re.compile(r"(`[^`\n]+`)")
_CODE_PARTS = re.compile(r"(```.*?```|~~~.*?~~~|`[^`\n]+`)", re.DOTALL)
# What Streamlit adds to Markdown (formulas, :red[…], :material/…:, :smile:), and images: they are fetched.
_ADDED = re.compile(r"(?<!\\)(?:\$|:(?=[\w+-]+[:\[/])|!(?=\[))")
_MOST_WORDS = 4000  #: characters of one text among words
_MOST_CELL = 500  #: of a table's cell
_MOST_LINE = 2000  #: of a line of text shown as it is
_MOST_LINES = 2000
_CODE = re.compile(r"`([^`\n]+)`")


def plain(text: str, most: int = _MOST_WORDS) -> str:
    """One line without control and direction characters, `most` characters long at most."""
    return _cut(_seen(" ".join(text[: 8 * most].split())), most)


def cell(text: str) -> str:
    """Like `plain`, for a cell of a table, which the reader may save as CSV."""
    return for_spreadsheet(plain(text, _MOST_CELL))


def verbatim(text: str) -> str:
    """Lines for ``st.code`` and ``st.text``: as they are, but for colours, control and direction characters.

    Of long lines the beginning is shown, of many lines the end.
    """
    lines = _seen(text.replace("\r\n", "\n")).split("\n")
    return "\n".join(_cut(line, _MOST_LINE) for line in lines[-_MOST_LINES:])


def markdown(text: str) -> str:
    """`text` as Markdown that shows exactly `text`: no markup, link, formula or HTML in it works."""
    joined = _ADDRESS.sub(lambda m: f"{m[1] or ''}{m[2] or m[3]}\u2060", plain(text))
    return _PUNCTUATION.sub(r"\\\1", joined)


def advice(text: str) -> str:
    """Like `markdown`, but spans in backticks stay code: rule pages name keys and files so."""
    parts = _CODE.split(text)
    return "".join(f"`{plain(part)}`" if index % 2 else _edged(part) for index, part in enumerate(parts))


def prose(text: str, page: RulePage | None) -> str:
    """Sentences for Markdown: as they stand where they are the rule page's own, else as `advice`.

    Rule pages are local files that somebody reviewed; a diagnosis may have come from anywhere.
    """
    if page is not None:
        own, written = page.sections, text.strip()
        sentences = (own.what, own.why, own.harmless, own.zh_what, own.zh_why)
        if written in sentences or written in _fixes_of(page):
            return own_words(written)
    return advice(text)


def _fixes_of(page: RulePage) -> set[str]:
    """The page's fixes in words, those for some versions with their condition and without."""
    fixes: list[Any] = list(fixes_for(page, {}))
    fixes += [fix.params["fix"] for fix in fixes if "fix" in fix.params]
    return {render(fix, language).strip() for fix in fixes for language in LANGUAGES}


def own_words(text: str) -> str:
    """A rule page's own Markdown, without what only Streamlit reads in it: ``$HOME`` begins no formula."""
    parts = _CODE_PARTS.split(text)
    return "".join(part if index % 2 else _ADDED.sub(r"\\\g<0>", part) for index, part in enumerate(parts))


def first_sentence(text: str) -> str:
    """The beginning of a fix up to its first full stop outside code: what to do, without how exactly."""
    position = 0
    for index, part in enumerate(_CODE_WHOLE.split(text)):
        if index % 2 == 0 and (end := _SENTENCE.search(part)):
            return text[: position + end.end()].strip()
        position += len(part)
    return text.strip()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _seen(text: str) -> str:
    """Without colours, control and direction characters, and halves of surrogates, which cannot be sent."""
    return without_controls(TERMINAL_CODES.sub("", text.encode("utf-8", "replace").decode("utf-8")))


def _edged(part: str) -> str:
    """Escaped, with the blanks at its edges kept."""
    inner = markdown(part)
    if not inner:
        return " " if part else ""
    return (" " if part[:1].isspace() else "") + inner + (" " if part[-1:].isspace() else "")


def label(text: str, longest: int = 60) -> str:
    """`text` for a Plotly label, which reads a few HTML tags: none of them left, and not too long."""
    return html.escape(plain(text, longest), quote=False)
