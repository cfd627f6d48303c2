"""The parsed rule pages kept between starts: parsing hundreds of Markdown files takes a second.

They are taken only for the very files that they were made of, and only pages without a problem are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stallwatch_rules.matching import cachefolder
from stallwatch_rules.pages.page import RulePage

#: What makes pages of files: with another version of it they are parsed again.
_PARSERS = ("page.py", "page_body.py", "frontmatter.py", "patterns.py", "fragments.py", "catalogue.py")
_NAME = "catalogue.msgpack"


class _Kept(msgspec.Struct):
    stamp: str
    pages: list[RulePage]


def stamp_of(files: Iterable[Path]) -> str:
    """Changes with every file that is added, removed or written, and with the package's version."""
    seen = hashlib.sha256(cachefolder.MADE_BY.encode())
    here = Path(__file__).parent
    for path in (*files, *(here / name for name in _PARSERS)):
        status = path.stat()
        seen.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return seen.hexdigest()


def kept_pages(folder: Path, stamp: str) -> list[RulePage] | None:
    """The pages that were kept of exactly these files."""
    content = cachefolder.read(folder / _NAME)
    if content is None:
        return None
    try:
        kept = msgspec.msgpack.decode(content, type=_Kept)
    except (msgspec.MsgspecError, ValueError):
        return None
    return kept.pages if kept.stamp == stamp else None


def keep_pages(folder: Path, stamp: str, pages: Sequence[RulePage]) -> None:
    """Keep them, if the folder lets us."""
    cachefolder.write(folder / _NAME, msgspec.msgpack.encode(_Kept(stamp, list(pages))))
