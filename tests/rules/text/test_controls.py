"""Control characters that act instead of being shown."""

from __future__ import annotations

import unicodedata

from stallwatch_rules.text.controls import without_controls

# Visible marks of Arabic, Syriac and Kaithi.
_SEEN = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"


def test_control_characters_are_removed() -> None:
    acting = [chr(n) for n in range(0x13000) if unicodedata.category(chr(n)) in ("Cc", "Cf")]
    assert "".join(char for char in acting if without_controls(char)) == "".join(sorted("\t\n" + _SEEN))


def test_plain_text_is_unchanged() -> None:
    text = "第 3 步\tloss 0.5\nnaïve — “ok” GLHF! 🏖\ufe0f"
    assert without_controls(text) == text
    assert without_controls("a\x1b[31mb", "?") == "a?[31mb"
