"""The pages with the words nearest to those of an unknown failure."""

from __future__ import annotations

import pytest

from stallwatch_rules.failures.nearest import Nearest
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading


@pytest.fixture(scope="module")
def nearest(catalogue: Catalogue) -> Nearest:
    return Nearest(catalogue)


@pytest.mark.parametrize(
    ("exception", "message", "rule"),
    [
        (
            "AttributeError",
            "'Model' object has no attribute 'zero_gather_weights_on_save'",
            "zero3-save-unwrapped-model",
        ),
        ("OSError", "disk quota reached, no space left for the checkpoint", "disk-full-checkpoint"),
        (
            "RuntimeError",
            "the watchdog saw the collective operation run into its timeout",
            "nccl-collective-timeout",
        ),
    ],
)
def test_other_wording_of_a_known_failure_is_found(
    exception: str, message: str, rule: str, nearest: Nearest
) -> None:
    near = nearest.of(exception, message)
    assert rule in [item.rule for item in near]
    assert all(0 < item.score <= 1 for item in near)
    assert near == sorted(near, key=lambda item: -item.score)


def test_similar_page_is_never_certain(catalogue: Catalogue, nearest: Nearest) -> None:
    page = catalogue.pages["cuda-oom"]
    (first, *_) = nearest.of("", page.fires[0])
    assert (first.rule, first.score) == ("cuda-oom", 0.9)


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("KeyError", "'text'"),
        ("ValueError", "the recipe needs more salt than the kitchen holds"),
        ("ValueError", "bad batch shape (3, 7)"),
        ("IndexError", "list index out of range"),
        ("AttributeError", "'NoneType' object has no attribute 'shape'"),
        ("TypeError", "forward() missing 1 required positional argument: 'input_ids'"),
        ("ValueError", "invalid literal for int() with base 10: 'abc'"),
        ("ValueError", "not enough values to unpack (expected 2, got 1)"),
        ("TypeError", "unsupported operand type(s) for +: 'int' and 'str'"),
        ("ImportError", "cannot import name 'load' from 'helpers'"),
        ("RuntimeError", "the model weights cannot be saved at this step"),
        ("RuntimeError", "failed"),
        ("", ""),
    ],
)
def test_common_words_alone_are_not_similar(exception: str, message: str, nearest: Nearest) -> None:
    assert nearest.of(exception, message) == []


def test_diagnosis_lists_similar_pages_without_a_claim(catalogue: Catalogue, matcher: Matcher) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(
        lines_of(
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
            "ValueError: Expected all tensors to have the same dtype on one device, found half and float\n"
        )
    )
    diagnosis = rendered(reading.diagnose())
    assert diagnosis.verdict == "unknown-failure"
    assert diagnosis.primary is None
    assert {item.rule for item in diagnosis.unknown[0].nearest} >= {
        "dtype-mismatch",
        "tensors-on-different-devices",
    }


def test_repeated_text_is_compared_once(nearest: Nearest, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("OSError", "disk quota reached, no space left for the second checkpoint", "")
    first = nearest.of(*texts)
    monkeypatch.setattr("stallwatch_rules.failures.nearest._features", None)
    assert nearest.of(*texts) == first
    with pytest.raises(TypeError):
        nearest.of("OSError", "another text")
