"""Characters that act instead of being shown."""

from __future__ import annotations

import unicodedata

from stallwatch_rules.text.controls import without_controls

# Marks of Arabic and Syriac numbers, the soft hyphen and Mongolian's vowel separator are parts of words.
_WORDS = "\u00ad\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\u180e"


def test_nothing_that_acts_gets_through() -> None:
    acting = [chr(n) for n in range(0x3000) if unicodedata.category(chr(n)) in ("Cc", "Cf")]
    assert "".join(char for char in acting if without_controls(char)) == "".join(sorted("\t\n" + _WORDS))


def test_text_stays_as_it_is() -> None:
    text = "第 3 步\tloss 0.5\nnaïve — “ok”"
    assert without_controls(text) == text
    assert without_controls("a\x1b[31mb", "?") == "a?[31mb"
