"""Terminal codes: colours, cursor movements, titles and links, in text and in bytes alike."""

from __future__ import annotations

from stallwatch_rules.text.lazy import lazy

# CSI, OSC up to its end (never beyond the line's), and the short ones.
_CODE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)"
IN_TEXT = lazy(_CODE)
IN_BYTES = lazy(_CODE.encode())
