"""Store reports for later viewing. Each report is a file in ``<home>/reports`` and contains no secrets."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from stallwatch_rules.decoding import from_msgpack
from stallwatch_rules.files import replace
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.clean import clean_diagnosis

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")
_SUFFIX = ".msgpack"
_MOST_BYTES = 32 << 20  #: a report has a few hundred kilobytes; a larger file is not a report


class SavedReport(msgspec.Struct):
    id: str
    at: float  #: Unix seconds
    names: list[str]  #: names of the files that were read
    language: str
    diagnosis: Diagnosis
    context: str = ""  #: the lines around the evidence


class Reports:
    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = home / "reports"
        self._clock = clock

    def keep(self, found: Diagnosis, names: Sequence[str], language: str, context: str = "") -> SavedReport:
        """Save and return a report. Raise ``OSError`` if the report cannot be written."""
        now = self._clock()
        moment = datetime.fromtimestamp(now, timezone.utc)
        kept = SavedReport(
            f"{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}",
            now,
            list(names),
            language,
            clean_diagnosis(found),
            context,
        )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace(self._path(kept.id), msgspec.msgpack.encode(kept))
        return kept

    def load(self, wanted: str) -> SavedReport | None:
        """Return the report with this ID, or ``None`` if it does not exist or cannot be read."""
        return _read(self._path(wanted)) if _ID.fullmatch(wanted) else None

    def all(self) -> list[SavedReport]:
        try:
            paths = [path for path in self._folder.iterdir() if path.suffix == _SUFFIX]
        except OSError:
            return []
        found = [kept for path in paths if _ID.fullmatch(path.stem) and (kept := _read(path)) is not None]
        return sorted(found, key=lambda kept: kept.id, reverse=True)

    def delete(self, wanted: str) -> None:
        """Delete a report. A missing report is not an error."""
        if _ID.fullmatch(wanted):
            self._path(wanted).unlink(missing_ok=True)

    def _path(self, wanted: str) -> Path:
        return self._folder / f"{wanted}{_SUFFIX}"


def _read(path: Path) -> SavedReport | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return from_msgpack(path.read_bytes(), SavedReport)
    except (OSError, msgspec.MsgspecError):
        return None
