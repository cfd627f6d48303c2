"""Is a rule's text still in the source that prints it?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallwatch_rules.literals import branches
from stallwatch_rules.page import parse_page
from stallwatch_rules.wordings import Search, Template, Verified, covers, in_range, pieces_of, same_package

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
def test_the_fixed_text_of_a_pattern(pattern: str, expected: list[tuple[str, ...]]) -> None:
    assert sorted(branches(pattern)) == sorted(expected)


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        (("RuntimeError: still have inflight params [{'id': ",), ["still have inflight params"]),
        (("torch.cuda.OutOfMemoryError: CUDA out of memory",), ["CUDA out of memory"]),
        (("AttributeError: '", "' object has no attribute 'ds_numel'"), ["ds_numel"]),
        (
            ("Trying to set a tensor of shape torch.Size([", "]) (which has shape torch.Size([0]))"),
            ["Trying to set a tensor of shape", "which has shape"],
        ),
        (("{'id': ", ", 'status': '", "IN_FLIGHT', 'numel': "), ["status", "IN_FLIGHT"]),
        (("CalledProcessError: Command '", ".py", "returned non-zero exit status "), ["CalledProcessError"]),
        (("RuntimeError: ", "ValueError"), []),
        (("[WARNING] ",), []),
        (("too", "short"), []),
    ],
)
def test_what_python_and_loggers_add_is_not_looked_for(branch: tuple[str, ...], expected: list[str]) -> None:
    assert pieces_of(branch) == expected


@pytest.mark.parametrize(
    ("template", "piece", "expected"),
    [
        ("function \0 returned an invalid gradient", "function sumbackward0 returned an invalid", True),
        ("port %d is already in use", "port 99 is already in use", True),
        ("the {name} of {place} is lost for good", "the wheel is lost for good", True),
        ("an invalid gradient was returned", "function sumbackward0 returned an invalid gradient", False),
        ("\0\0", "anything at all", False),
        ("unrelated", "anything at all", False),
    ],
)
def test_a_string_with_values_put_in(template: str, piece: str, expected: bool) -> None:
    assert covers(template, piece) is expected


RUM = {"patterns": [r"the hold holds \d+ of crates of rum"], "fires": ["the hold holds 3 of crates of rum"]}


def search(page_text: PageText, *templates: str, version: str = "1.0", **front: object) -> Verified:
    front = {"emitted_by": [{"package": "cargo", "versions": "<2"}], **front}
    looked = Search([parse_page(page_text(**front), "memory/no-room.md")], "cargo", version)
    looked.see("cargo/hold.py", [Template(text, line) for line, text in enumerate(templates, 7)])
    return looked.results["no-room"]


def test_found_with_its_place(page_text: PageText) -> None:
    patterns = ["never there at all", "is quite out of room"]
    said = ("something", "the hold is quite out of room today")
    found = search(page_text, *said, patterns=patterns, fires=[patterns[1]])
    assert (found.state, found.file, found.line) == ("found", "cargo/hold.py", 8)
    assert found.pattern == "is quite out of room"


def test_missing_unless_every_piece_is_there(page_text: PageText) -> None:
    assert search(page_text, "the hold holds", **RUM).state == "missing"
    assert search(page_text, "the hold holds \0 of crates of rum", **RUM).state == "found"


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


def test_a_file_that_cannot_hold_it_needs_no_parsing(page_text: PageText) -> None:
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
