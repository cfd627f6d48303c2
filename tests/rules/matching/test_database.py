"""Cached data: compiled patterns and parsed pages. A broken cache counts as an empty one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch_rules.matching import database, disk_cache, literal_index
from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.matching.literal_index import LiteralIndex
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages import catalogue as catalogue_module
from stallwatch_rules.pages.catalogue import load_catalogue

pytest.importorskip("hyperscan")

PATTERNS = ("out of memory", "step \\d+")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the list of patterns that were compiled, not loaded."""
    monkeypatch.setattr(database, "_loaded", {})
    seen: list[tuple[str, ...]] = []
    compile_hyperscan = database.compile_hyperscan

    def counting(patterns: tuple[str, ...], texts: database.Texts) -> object:
        seen.append(patterns)
        return compile_hyperscan(patterns, texts)

    monkeypatch.setattr(database, "compile_hyperscan", counting)
    return seen


def found(compiled_database: object, data: bytes) -> set[int]:
    hits: set[int] = set()
    compiled_database.scan(data, match_event_handler=lambda i, *_: hits.add(i))  # type: ignore[attr-defined]
    return hits


def test_patterns_are_compiled_once(tmp_path: Path, compiled: list[tuple[str, ...]]) -> None:
    for _ in range(2):
        database._loaded.clear()  # as in another process
        again = DatabaseStore(tmp_path / "new").compiled(PATTERNS)
        assert found(again, b"step 12") == {1}
    assert compiled == [PATTERNS]
    DatabaseStore(tmp_path / "new").compiled(PATTERNS[:1])
    assert compiled == [PATTERNS, PATTERNS[:1]]


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 5000, None])
def test_corrupt_file_is_recreated(
    tmp_path: Path, compiled: list[tuple[str, ...]], content: bytes | None
) -> None:
    DatabaseStore(tmp_path).compiled(PATTERNS)
    (file,) = tmp_path.glob("*.hsdb")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] if content is None else content)
    database._loaded.clear()
    assert found(DatabaseStore(tmp_path).compiled(PATTERNS), b"out of memory") == {0}
    assert len(compiled) == 2
    assert file.read_bytes() == whole


def test_unwritable_cache_is_not_an_error(tmp_path: Path, compiled: list[tuple[str, ...]]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    assert found(DatabaseStore(blocked).compiled(PATTERNS), b"step 1") == {1}


def test_database_writable_by_others_is_recompiled(tmp_path: Path, compiled: list[tuple[str, ...]]) -> None:
    DatabaseStore(tmp_path).compiled(PATTERNS)
    (file,) = tmp_path.glob("*.hsdb")
    file.chmod(0o666)
    database._loaded.clear()
    assert found(DatabaseStore(tmp_path).compiled(PATTERNS), b"step 1") == {1}
    assert len(compiled) == 2
    assert file.stat().st_mode & 0o777 == 0o600


def another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MADE_BY", "stallwatch 99")


def another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_makers", lambda: [("patterns.py", 1, 2)])


def other_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "hyperscan_flags", lambda: 0)


def another_hyperscan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.hyperscan, "__version__", "99")


def another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_processor", lambda: "fewer instructions")


@pytest.mark.parametrize(
    "change", [another_version, another_form, other_flags, another_hyperscan, another_processor]
)
def test_file_name_depends_on_all_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    DatabaseStore(tmp_path).compiled(PATTERNS)
    change(monkeypatch)
    database._loaded.clear()
    DatabaseStore(tmp_path).compiled(PATTERNS)
    assert len(list(tmp_path.glob("*.hsdb"))) == 2


def test_literals_are_recomputed_for_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    literals_of = literal_index.literals_of
    monkeypatch.setattr(literal_index, "literals_of", lambda item: looked.append(item) or literals_of(item))

    def owners() -> tuple[tuple[int, ...], ...]:
        return LiteralIndex(PATTERNS, DatabaseStore(tmp_path)).owners

    first = owners()
    assert owners() == first
    assert looked == [*PATTERNS]
    another_version(monkeypatch)
    assert owners() == first
    assert looked == [*PATTERNS] * 2
    for kept in tmp_path.glob("literals-*.msgpack"):
        kept.write_bytes(b"\x93\x01\x02\x03")  # msgpack, but not such a table
    assert owners() == first
    assert looked == [*PATTERNS] * 3


def test_number_of_cached_literal_lists_is_bounded(tmp_path: Path) -> None:
    for number in range(6):
        LiteralIndex((f"list number {number}",), DatabaseStore(tmp_path))
    assert len(list(tmp_path.glob("literals-*.msgpack"))) == 4


def test_pages_are_parsed_once(
    tmp_path: Path, page_text: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rules" / "memory"
    folder.mkdir(parents=True)
    mine = folder / "my-rule.md"
    mine.write_text(
        page_text(id="my-rule", family="memory", patterns=["my own failure"], fires=["my own failure"])
    )
    first = load_catalogue([tmp_path / "rules"], cache=tmp_path / "cache")
    assert not first.problems

    parsed: list[str] = []
    read = catalogue_module._read
    monkeypatch.setattr(
        catalogue_module, "_read", lambda content, path: parsed.append(path) or read(content, path)
    )
    second = load_catalogue([tmp_path / "rules"], cache=tmp_path / "cache")
    assert not parsed
    assert second == first
    assert Matcher(second).match(lines_of("my own failure"))

    mine.write_text(mine.read_text().replace("my own failure", "another failure"))
    third = load_catalogue([tmp_path / "rules"], cache=tmp_path / "cache")
    assert str(mine) in parsed
    assert third.pages["my-rule"].patterns == ["another failure"]

    parsed.clear()
    another_version(monkeypatch)
    assert load_catalogue([tmp_path / "rules"], cache=tmp_path / "cache") == third
    assert str(mine) in parsed

    for kept in (tmp_path / "cache").glob("catalogue-*.msgpack"):
        kept.write_bytes(b"nonsense")
    parsed.clear()
    assert load_catalogue([tmp_path / "rules"], cache=tmp_path / "cache") == third
    assert str(mine) in parsed
