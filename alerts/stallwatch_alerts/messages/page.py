"""A message as HTML, for e-mail."""

from __future__ import annotations

import html

from stallwatch_alerts.messages.layout import Block, Code, Links, blocks_of

_FONT = "font-family:system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif;font-size:14px"
_PRE = (
    "background:#f4f4f5;border-radius:6px;padding:8px 12px;font-size:13px;"
    "white-space:pre-wrap;overflow-wrap:anywhere"
)


def html_page(text: str) -> str:
    """One element; everything in it is escaped."""
    return f'<div style="{_FONT}">' + "".join(_written(block) for block in blocks_of(text)) + "</div>"


def _written(block: Block) -> str:
    if isinstance(block, Code):
        return f'<pre style="{_PRE}">{html.escape(chr(10).join(block.lines))}</pre>'
    if isinstance(block, Links):
        links = (f'<a href="{html.escape(url)}">{html.escape(label)}</a>' for label, url in block.links)
        return f"<p>{' · '.join(links)}</p>"
    lines = (
        f"<strong>{html.escape(label)}</strong>" * bool(label) + html.escape(rest)
        for label, rest in block.lines
    )
    return f"<p>{'<br/>'.join(lines)}</p>"
