"""Requirements of ``stallwatch coordinator``."""

from __future__ import annotations

from typing import Any


def test_missing_secret_is_reported_with_the_variable_to_set(stallwatch: Any) -> None:
    result = stallwatch("coordinator")
    assert result.exit_code == 2
    assert "STALLWATCH_JOIN_SECRET" in result.output
