"""The lines of ``redaction/``: what is masked, and what is kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stallwatch_rules.text.redact import MASK, redact

_FOLDER = Path(__file__).with_name("redaction")
_MARKED = re.compile("⟦(.*?)⟧")


def lines(name: str) -> list[str]:
    text = (_FOLDER / name).read_text(encoding="utf-8").replace("·", "")
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize("line", lines("secret.txt"))
def test_secret_is_masked_and_the_rest_is_kept(line: str) -> None:
    secrets = _MARKED.findall(line)
    assert secrets
    shown = redact(_MARKED.sub(r"\1", line))
    for secret in secrets:
        assert secret not in shown and secret[-8:] not in shown
    # The text around the secrets is still there, in its order; a token's prefix may be left of it.
    around = [re.escape(part) for part in _MARKED.split(line)[::2]]
    assert re.fullmatch(r"[^ ]{0,12}(?:\*\*\*|~)".join(around), shown), shown
    assert redact(shown) == shown


@pytest.mark.parametrize("line", lines("harmless.txt"))
def test_other_text_is_unchanged(line: str) -> None:
    assert redact(line) == line


@pytest.mark.parametrize("name", ["secret.txt", "harmless.txt"])
def test_redaction_does_not_depend_on_the_position(name: str) -> None:
    texts = [_MARKED.sub(r"\1", line) for line in lines(name)]
    assert redact("\n".join(texts)).split("\n") == [redact(text) for text in texts]


HOSTILE = ["1234567:", "SEC0", "cookie: a=", "authorization: ", "aB3+", "curl -u a:", "nvapi-", "C:\\Users\\"]


@pytest.mark.parametrize("unit", [*HOSTILE, "BEGIN PRIVATE KEY-----", "sshpass -p "])
def test_time_is_linear_in_length(unit: str) -> None:
    assert redact(unit * (400_000 // len(unit)))  # a quadratic look takes minutes: more than a test may


def test_mask_is_not_masked_again() -> None:
    assert redact(f"token={MASK.decode()}") == "token=***"
