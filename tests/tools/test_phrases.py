"""Adjacent words in source: with hyperscan and without."""

from __future__ import annotations

import pytest
from wordings import phrases
from wordings.phrases import Phrases, rare_phrases


@pytest.fixture(params=["hyperscan", "google-re2"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "google-re2":
        monkeypatch.setattr(phrases, "hyperscan", None)


@pytest.mark.usefixtures("engine")
def test_phrases_are_found_across_line_breaks_and_in_any_case() -> None:
    looked = Phrases([("the", "crane"), ("crane", "broke"), ("boat",)])
    text = b'say("The Crane "\n    "broke")'
    assert sorted(looked.hits(text)) == [(("crane", "broke"), len(text) - 2), (("the", "crane"), 14)]
    assert looked.ends(b"the\0crane") == [], "two strings of a compiled file"
    assert looked.ends(b"\xff\xfeboat\0the crane") == [6, 16]
    assert looked.hits(b"nothing") == looked.ends(b"nothing") == []


@pytest.mark.usefixtures("engine")
def test_no_phrases_find_nothing() -> None:
    assert Phrases([]).hits(b"the crane") == []
    assert Phrases([]).ends(b"the crane") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("crane_of_hold", [("crane_of_hold",)]),
        ("a crane", [("a", "crane")]),
        ("a crane of the port", [("crane", "of"), ("the", "port")]),
        (
            "the hold of a ship holds so many crates",
            [("so", "many", "crates"), ("a", "ship", "holds")],
        ),
    ],
)
def test_placeholder_breaks_only_one_phrase(text: str, expected: list[phrases.Phrase]) -> None:
    assert rare_phrases(text.split()) == expected
