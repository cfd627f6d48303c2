"""Fragments of patterns: inserted when a page is loaded, or refused with a fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages import catalogue as catalogue_module
from stallwatch_rules.pages import patterns as module
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.page import LONGEST, parse_page
from stallwatch_rules.pages.page_body import PageError
from stallwatch_rules.pages.patterns import FragmentError, compile_re2, expand, shared_fragments

PATH = "catalogue/memory/no-room.md"
PageText = Callable[..., str]

SIGNAL = {"number": "4", "signal": "ILL", "words": "Illegal instruction", "status": "132"}
FRAGMENTS = """
error:
  about: an error's name
  any_of: [ValueError, OSError]
place:
  about: where it happened
  pattern: ' in \\w+'
report:
  about: both
  pattern: '${error}${place}: '
first: {about: a circle, pattern: '${second}'}
second: {about: a circle, pattern: '${first}'}
"""


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder with a file of fragments that replaces the packaged ones."""
    folder = tmp_path / "fragments"
    folder.mkdir()
    (folder / "few.yaml").write_text(FRAGMENTS, encoding="utf-8")
    monkeypatch.setattr(module, "FOLDER", folder)
    monkeypatch.setattr(catalogue_module, "FOLDER", folder)
    shared_fragments.cache_clear()
    yield folder
    shared_fragments.cache_clear()


@pytest.mark.parametrize(
    ("written", "expanded"),
    [
        ("no room", ["no room"]),
        ("${error}: no room", ["(?:ValueError|OSError): no room"]),
        ("${error}", ["ValueError", "OSError"]),
        ("(?i)${error}", ["(?i)(?:ValueError|OSError)"]),
        ("no room${place}", [r"no room in \w+"]),
        ("no room${place}?", [r"no room(?: in \w+)?"]),
        ("${report}no room", [r"(?:ValueError|OSError) in \w+: no room"]),
        (r"\${error} is not set", [r"\${error} is not set"]),
    ],
)
def test_fragments_are_expanded(few: Path, written: str, expanded: list[str]) -> None:
    assert expand(written, {}) == expanded


@pytest.mark.parametrize(
    ("written", "message", "remedy"),
    [
        ("${eror} x", "unknown fragment ${eror}", "did you mean ${error}?"),
        ("${x} x", "unknown fragment ${x}", "see the list of fragments in docs/rules.md"),
        (
            "${first} x",
            "the fragment in '${second}' refers to itself",
            "replace one of the references with its text",
        ),
    ],
)
def test_invalid_fragment_reference_is_refused(few: Path, written: str, message: str, remedy: str) -> None:
    with pytest.raises(FragmentError) as refused:
        expand(written, {})
    assert (refused.value.fault.message, refused.value.fault.remedy) == (message, remedy)


def test_every_pattern_of_a_page_can_use_fragments(few: Path, page_text: PageText) -> None:
    page = parse_page(
        page_text(
            patterns=["${error}: out of room"],
            requires=["${error}"],
            unless=["small${place}"],
            raised_in=[{"file": "a/b.py", "message": "${error}"}],
            said_by=[{"words": "^${error}", "calls": "load${place}", "never": "save${place}"}],
        ),
        PATH,
    )
    assert page.patterns == ["(?:ValueError|OSError): out of room"]
    assert page.requires == ["ValueError", "OSError"]
    assert page.unless == [r"small in \w+"]
    assert page.raised_in[0].message == "ValueError|OSError"
    assert page.said_by[0].words == "^(?:ValueError|OSError)"
    assert page.said_by[0].calls == r"load in \w+"
    assert page.said_by[0].never == r"save in \w+"


def test_signal_page_uses_its_own_fragments(few: Path, page_text: PageText) -> None:
    (few / "more.yaml").write_text("end: {about: how it ended, any_of: ['${word} end', '${word} stop']}")
    shared_fragments.cache_clear()
    text = page_text(fragments={"word": "bad", "place": "here"}, patterns=["${end}"])
    with pytest.raises(
        PageError, match=r"a shared fragment is already named \$\{place\}; choose another name"
    ):
        parse_page(text, PATH)
    page = parse_page(page_text(fragments={"word": "bad"}, patterns=["${end}", "no ${word} room"]), PATH)
    assert page.patterns == ["bad end", "bad stop", "no bad room"]
    with pytest.raises(PageError, match=r"unknown fragment \$\{word\}"):
        parse_page(page_text(patterns=["${end}"]), PATH)
    with pytest.raises(PageError, match="fragments"):
        parse_page(page_text(fragments={"word": 4}), PATH)


def test_unknown_fragment_is_reported_with_its_line(few: Path, page_text: PageText) -> None:
    text = page_text(unless=["${plaice}"])
    with pytest.raises(PageError) as refused:
        parse_page(text, PATH)
    line = next(number for number, line in enumerate(text.split("\n"), 1) if line.startswith("unless:"))
    assert str(refused.value) == (
        f"{PATH}:{line}: unless[0] '${{plaice}}': unknown fragment ${{plaice}}; did you mean ${{place}}?"
    )


def test_cached_pages_are_reloaded_after_a_fragment_change(
    few: Path, tmp_path: Path, page_text: PageText, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "rules" / "memory" / "my-rule.md"
    mine.parent.mkdir(parents=True)
    mine.write_text(page_text(id="my-rule", patterns=["${error}: no room"]), encoding="utf-8")
    monkeypatch.setattr(catalogue_module, "files", lambda package: tmp_path / "nothing")
    (tmp_path / "nothing" / "catalogue").mkdir(parents=True)
    load = lambda: load_catalogue([tmp_path / "rules"], cache=tmp_path / "cache")  # noqa: E731
    assert load().pages["my-rule"].patterns == ["(?:ValueError|OSError): no room"]
    (few / "few.yaml").write_text(FRAGMENTS.replace("OSError", "IOError"), encoding="utf-8")
    shared_fragments.cache_clear()
    catalogue_module._read.cache_clear()
    assert load().pages["my-rule"].patterns == ["(?:ValueError|IOError): no room"]


@pytest.mark.parametrize("name", shared_fragments())
def test_packaged_fragments_are_valid(name: str) -> None:
    fragment = shared_fragments()[name]
    assert fragment.about
    assert bool(fragment.pattern) != bool(fragment.any_of)
    for text in fragment.any_of or [fragment.pattern]:
        assert len(text) <= LONGEST
        assert not text.startswith("(?i)")
        for expanded in expand(text, SIGNAL):
            compile_re2(expanded)
    # the alternation would extend into the rest of a page's pattern
    assert "|" not in _outside_groups(fragment.pattern)


def _outside_groups(pattern: str) -> str:
    left = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "", pattern)
    while (inner := re.sub(r"\([^()]*\)", "", left)) != left:
        left = inner
    return left


@pytest.mark.parametrize(
    ("rule", "signal"),
    [
        ("process-segfault", (11, "SEGV", "Segmentation fault")),
        ("process-sigabrt", (6, "ABRT", "Aborted")),
        ("process-sigbus", (7, "BUS", "Bus error")),
        ("process-sigill", (4, "ILL", "Illegal instruction")),
        ("floating-point-exception-core-dump", (8, "FPE", "Floating point exception")),
    ],
)
@pytest.mark.parametrize(
    "line",
    [
        "Signal {0} (SIG{1}) received by PID 4171",
        "  exitcode  : -{0} (pid: 4171)",
        "failed (exitcode: -{0}) local_rank: 3 (pid: 4171) of binary: /usr/bin/python",
        "[ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -{0}",
        "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIG{1}: {0}>.",
        "Fatal Python error: {2}",
        "[node1:4171:0:4171] Caught signal {0} ({2}: address not mapped to object at address (nil))",
        "[node1:4171] Signal: {2} ({0})",
        "*** SIG{1} received at time=1767776401 on cpu 3 ***",
        "ProcessExitedException: process 1 terminated with signal SIG{1}",
        "mpirun noticed that process rank 1 with PID 4171 on node node1 exited on signal {0} ({2}).",
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {2} (signal {0})",
        "srun: error: node1: task 3: {2}",
        "train.service: Main process exited, code=dumped, status={0}/{1}",
        "make: *** [Makefile:7: train] {2} (core dumped)",
        "train.sh: line 7:  4171 {2} (core dumped) python train.py",
        "the container exited with exit code {3}",
    ],
)
def test_signal_is_recognized_from_every_reporter(
    rule: str, signal: tuple[int, str, str], line: str, packaged: Matcher
) -> None:
    text = line.format(*signal, 128 + signal[0])
    assert rule in {fired for _, fired, _ in packaged.match_text(text)}


@pytest.fixture(scope="module")
def packaged() -> Matcher:
    return Matcher(load_catalogue())


def test_every_packaged_fragment_is_used() -> None:
    folder = Path(module.__file__).parent.parent
    written = [*folder.rglob("*.md"), *(folder / "fragments").glob("*.yaml")]
    texts = "".join(path.read_text(encoding="utf-8") for path in written)
    assert [name for name in shared_fragments() if f"${{{name}}}" not in texts] == []
