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
def test_the_secret_goes_and_the_rest_stays(line: str) -> None:
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
def test_what_is_no_secret_stays(line: str) -> None:
    assert redact(line) == line


@pytest.mark.parametrize("name", ["secret.txt", "harmless.txt"])
def test_a_line_is_redacted_alike_at_every_position(name: str) -> None:
    texts = [_MARKED.sub(r"\1", line) for line in lines(name)]
    assert redact("\n".join(texts)).split("\n") == [redact(text) for text in texts]


HOSTILE = ["1234567:", "SEC0", "cookie: a=", "authorization: ", "aB3+", "curl -u a:", "nvapi-", "C:\\Users\\"]


@pytest.mark.parametrize("unit", [*HOSTILE, "BEGIN PRIVATE KEY-----", "sshpass -p "])
def test_time_grows_with_length_only(unit: str) -> None:
    assert redact(unit * (400_000 // len(unit)))  # a quadratic look takes minutes: more than a test may


def test_the_mask_is_no_secret() -> None:
    assert redact(f"token={MASK.decode()}") == "token=***"
