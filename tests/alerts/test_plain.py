from __future__ import annotations

import pytest

from stallwatch_alerts.messages.links import plain


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("Set `a_b` in *that* **file**.", "Set a_b in that file."),
        ("Look into `__init__.py` and `a * b * c`.", "Look into __init__.py and a * b * c."),
        ("See [the notes](https://x.org/a) or <https://y.org>.", "See the notes or ."),
        ("Run `pip install -i https://x.org` (https://y.org).", "Run pip install -i https://x.org."),
        ("One line\nand the next.\n\nAnother paragraph.", "One line and the next."),
        ("Short. " + "word " * 30, "Short. word word word word word word wo…"),
        ("A first sentence. A second one that is cut somewhere here.", "A first sentence."),
        ("All ranks wait there. One is not waiting: it is elsewhere.", "All ranks wait there."),
        ("All ranks wait. The one to find:\n\n- is elsewhere", "All ranks wait."),
        ("The rank to find:\n\n- is elsewhere", "The rank to find…"),
        (
            "第一句话到这里为止。第二句话太长所以不要了，不要了，不要了，不要了，不要了，不要了，不要了。",
            "第一句话到这里为止。",
        ),
    ],
)
def test_markdown_becomes_plain_text(markdown: str, text: str) -> None:
    assert plain(markdown, 40 if "第" not in markdown else 25) == text
