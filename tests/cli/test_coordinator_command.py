"""Requirements of ``stallwatch coordinator``."""

from __future__ import annotations

from typing import Any


def test_without_a_secret_it_says_what_to_set(stallwatch: Any) -> None:
    result = stallwatch("coordinator")
    assert result.exit_code == 2
    assert "STALLWATCH_JOIN_SECRET" in result.output
