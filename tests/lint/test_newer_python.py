"""Error messages of a Python that is too old, and the newer version that accepts the line."""

from __future__ import annotations

import pytest

from stallwatch_lint.newer_python import newer_syntax


@pytest.mark.parametrize(
    ("text", "reason", "since"),
    [
        ("type X = int", "invalid syntax", "3.12"),
        ("async def f[T](x): pass", "expected '('", "3.12"),
        ("x = f'{d['a']}'", "f-string: unmatched '['", "3.12"),
        ("x = f'{d['a'}", "'[' was never closed", None),
        ("send(t'{x}')", "invalid syntax", "3.14"),
        ("except OSError, ValueError:", "multiple exception types must be parenthesized", "3.14"),
        ("except OSError, e:", "multiple exception types must be parenthesized", None),
        ("first['a' = 1", "invalid syntax", None),
        ("x = first[*a]", "invalid syntax", "3.11"),
        ("x: tuple[list[int], *Ts] = 1", "invalid syntax", "3.11"),
        ("print x[0], *a", "Missing parentheses in call to 'print'", None),
        ("def f(*args: *Ts): pass", "invalid syntax", "3.11"),
        (
            "    return [[x async for x in y] for y in z]",
            "asynchronous comprehension outside of an asynchronous function",
            "3.11",
        ),
        ("class C[T: list[int] = list[int]]: pass", "expected ':'", "3.13"),
        ("def f[T](x=1): pass", "expected '('", "3.12"),
    ],
)
def test_syntax_of_a_newer_python_is_recognized(text: str, reason: str, since: str | None) -> None:
    found = newer_syntax(f"\n{text}", 2, reason, (3, 10))
    assert (found[1] if found else None) == since
    assert newer_syntax(f"\n{text}", 2, reason, (3, 14)) is None
