"""Remove terminal codes and control characters, which terminals, web pages, or chats interpret or hide.

Log text and filenames can contain all of these characters. Every function that displays such text removes
them with the functions of this module.
"""

from __future__ import annotations

import re

from stallwatch_rules.text.lazy import lazy

# Terminal codes, for example, for colors, cursor movements, titles, and links. The pattern matches CSI
# sequences, OSC sequences up to their end (but never beyond the end of the line), and short codes.
_CODE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)"
TERMINAL_CODES = lazy(_CODE)
TERMINAL_CODES_IN_BYTES = lazy(_CODE.encode())


# The Unicode category Cc except tab and line feed, separators of lines and paragraphs, annotation marks, and
# characters that no font shows (Default_Ignorable_Code_Point). The last group consists of characters without
# width, characters that change the direction of writing, variation selectors, and tags. Tags can hide text
# that only machines read.
_CONTROLS = lazy(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufff9-\ufffb"
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def without_controls(text: str, instead: str = "") -> str:
    """Replace each control character, except tabs and line feeds, with `instead`."""
    return _CONTROLS.sub(instead, text)


def printable(text: str) -> str:
    """Replace control characters and invalid characters with ``?``. Filenames can contain any bytes."""
    return without_controls(text, "?").encode(errors="replace").decode()


# First characters of formulas (OWASP, "CSV injection"). In Chinese or Japanese text, their full-width forms
# also start formulas.
_FORMULA = lazy(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20](?!\Z)")
_NUMBER = lazy(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


def for_spreadsheet(text: str) -> str:
    """Return the text in a form that spreadsheets do not interpret as a formula."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
