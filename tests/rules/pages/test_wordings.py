"""Checks whether the text of a rule is still in the source that prints it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wordings.branches import branches
from wordings.pieces import covers, pieces_of
from wordings.search import (
    NEAR,
    Search,
    Template,
    Verified,
    in_range,
    same_package,
)

from stallwatch_rules.pages.page import parse_page

PageText = Callable[..., str]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"out of room", [("out of room",)]),
        (r"step (?P<step>\d+): expected module \d+", [("step ", ": expected module ")]),
        (r"(?:cat|dog) food\.", [("cat food.",), ("dog food.",)]),
        (r"[Cc]all it(?: a day)?", [("Call it",), ("Call it a day",), ("call it",), ("call it a day",)]),
        (r"a{1}b.*c\[\d+\]", [("ab", "c[", "]")]),
        (r"^\s*end$", [("end",)]),
        (r"(?i)warm", [("warm",)]),
        (r"\d+", []),
        (r"(unclosed", []),
    ],
)
def test_fixed_texts_of_a_pattern_are_extracted(pattern: str, expected: list[tuple[str, ...]]) -> None:
    assert sorted(branches(pattern)) == sorted(expected)


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        (("RuntimeError: still have inflight params [{'id': ",), ["still have inflight params"]),
        (("torch.cuda.OutOfMemoryError: CUDA out of memory",), ["CUDA out of memory"]),
        (("AttributeError: '", "' object has no attribute 'ds_param_type'"), ["ds_param_type"]),
        (
            ("Trying to set a tensor of shape torch.Size([", "]) (which has shape torch.Size([0]))"),
            ["Trying to set a tensor of shape", "which has shape"],
        ),
        (("{'id': ", ", 'status': '", "NOT_AVAILABLE', 'numel': "), ["status", "NOT_AVAILABLE"]),
        (("CalledProcessError: Command '", ".py", "returned non-zero exit status "), ["CalledProcessError"]),
        (("RuntimeError: ", "ValueError"), []),
        (("[WARNING] ",), []),
        (("too", "short"), []),
        (("OVERFLOW! ", "Skipping step"), []),  # both are anywhere
        (("has no attribute 'ds_rank",), []),
    ],
)
def test_prefixes_of_python_and_loggers_are_not_searched(
    branch: tuple[str, ...], expected: list[str]
) -> None:
    assert pieces_of(branch) == expected


@pytest.mark.parametrize(
    ("template", "piece", "expected"),
    [
        ("function \0 returned an invalid gradient", "function sumbackward0 returned an invalid", True),
        ("port %d is already in use", "port 99 is already in use", True),
        ("the {name} of {place} is lost for good", "the wheel is lost for good", True),
        ("an invalid gradient was returned", "function sumbackward0 returned an invalid gradient", False),
        ("\0\0", "anything at all", False),
        ("the size mismatch", "vocab size mismatch", False),
        ("unrelated", "anything at all", False),
    ],
)
def test_template_covers_formatted_text(template: str, piece: str, expected: bool) -> None:
    assert covers(template, piece) is expected


RUM = {"patterns": [r"the hold holds \d+ of crates of rum"], "fires": ["the hold holds 3 of crates of rum"]}


def search(page_text: PageText, *said: str | Template, version: str = "1.0", **front: object) -> Verified:
    front = {"emitted_by": [{"package": "cargo", "versions": "<2"}], **front}
    looked = Search([parse_page(page_text(**front), "memory/no-room.md")], "cargo", version)
    texts = [Template(item, 7 + line) if isinstance(item, str) else item for line, item in enumerate(said)]
    looked.see("cargo/hold.py", texts)
    return looked.results["no-room"]


def test_found_text_has_its_location(page_text: PageText) -> None:
    patterns = ["never there at all", "is quite out of room"]
    said = ("something", "the hold is quite out of room today")
    found = search(page_text, *said, patterns=patterns, fires=[patterns[1]])
    assert (found.state, found.file, found.line) == ("found", "cargo/hold.py", 8)
    assert found.pattern == "is quite out of room"


def test_text_is_missing_unless_every_part_is_found(page_text: PageText) -> None:
    assert search(page_text, "the hold holds", **RUM).state == "missing"
    assert search(page_text, "the hold holds \0 of crates of rum", **RUM).state == "found"


def test_parts_of_a_message_must_be_near_each_other(page_text: PageText) -> None:
    pieces = Template("the hold holds", 7), Template("of crates of rum", 7 + NEAR)
    assert search(page_text, *pieces, **RUM).state == "found"
    assert search(page_text, pieces[0], Template("of crates of rum", 8 + NEAR), **RUM).state == "missing"
    text = page_text(emitted_by=[{"package": "cargo"}], **RUM)
    looked = Search([parse_page(text, "memory/no-room.md")], "cargo")
    for piece in pieces:
        looked.see(f"{piece.text}.py", [piece])
    assert looked.results["no-room"].state == "missing", "each in a file of its own"


def test_file_with_all_texts_is_searched_first(page_text: PageText) -> None:
    looked = Search(
        [parse_page(page_text(emitted_by=[{"package": "cargo"}], **RUM), "memory/no-room.md")], "cargo"
    )
    whole = "say('The hold holds', 3, 'of crates of rum')"
    split = "say('the hold holds', 3, 'of crates {}'.format('of rum'))"
    assert [looked.promise(text) for text in (whole, split, "say('crates')")] == [2, 1, 0]
    looked.see("hold.py", [Template("the hold holds", 1), Template("of crates of rum", 1)])
    assert looked.promise(whole) == 0, "nothing is looked for any more"


def test_name_counts_only_for_names(page_text: PageText) -> None:
    missing = {"patterns": ["has no attribute 'crane_of_hold"], "fires": ["has no attribute 'crane_of_hold'"]}
    assert search(page_text, Template("crane_of_hold", 7, name=True), **missing).state == "found"
    assert search(page_text, Template("crane_of_hold_2", 7, name=True), **missing).state == "missing"
    rum = Template("the hold holds 3 of crates of rum", 7, name=True)
    assert search(page_text, rum, **RUM).state == "missing"


def test_short_text_is_not_searched(page_text: PageText) -> None:
    short = search(page_text, "out of room", patterns=["out of room"])
    assert (short.state, short.reason) == ("skipped", "its patterns hold no text that is long enough")


def test_skipped_where_the_rule_claims_another_version(page_text: PageText) -> None:
    skipped = search(page_text, version="2.1")
    assert (skipped.state, skipped.reason) == ("skipped", "it claims <2 only")


CRANE = "the crane is out of room"


def test_skipped_where_the_build_is_without_its_file(page_text: PageText) -> None:
    emitted = {"package": "cargo", "module": "csrc/Crane.cpp"}
    page = parse_page(page_text(fires=[CRANE], patterns=[CRANE], emitted_by=[emitted]), "memory/no-room.md")
    looked = Search([page], "cargo")
    assert looked.compiled == {"Crane.cpp"}
    assert looked.named("/x/cargo/csrc/Crane.cpp")
    looked.absent("Crane.cpp")
    result = looked.results["no-room"]
    assert (result.state, result.reason) == ("skipped", "this build is without Crane.cpp")


def test_skipped_where_the_long_text_may_be_another_packages(page_text: PageText) -> None:
    patterns = [CRANE, r"rum: (?:\d+|none left of all the crates)"]
    both = [{"package": "cargo"}, {"package": "port"}]
    for emitted, state in ((both, "skipped"), (both[:1], "missing")):
        page = parse_page(
            page_text(fires=[CRANE], patterns=patterns, emitted_by=emitted), "memory/no-room.md"
        )
        looked = Search([page], "cargo")
        looked.see("cargo/hold.py", [Template("rum: \0", 1)])
        looked.settle()
        assert looked.results["no-room"].state == state


def test_file_that_cannot_hold_it_needs_no_parsing(page_text: PageText) -> None:
    text = page_text(emitted_by=[{"package": "cargo"}], patterns=[CRANE], fires=[CRANE])
    looked = Search([parse_page(text, "memory/no-room.md")], "cargo")
    assert looked.may_be_in('say("the crane " +\n    "is out of", place("room"))')
    assert not looked.may_be_in("a crane: what a room it is")


def test_names_and_ranges() -> None:
    assert same_package("torch_npu", "Torch-NPU")
    assert in_range("0.19.8+cpu", ">=0.15.4")
    assert not in_range("0.19.8", "<0.15.4")
    assert in_range("unreadable", "<1")
    assert in_range("1.0", "")
