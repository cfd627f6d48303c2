"""Limit the address space of the watching process: its threads share their heaps."""

from __future__ import annotations

import contextlib

_M_ARENA_MAX = -8  # glibc, malloc/malloc.h


def limit_malloc_arenas() -> None:
    """Let all threads allocate from two heaps; glibc would reserve up to 128 MB for each thread.

    Under an address space limit (``ulimit -v``), a new thread could otherwise fail to allocate any memory.
    CPython 3.11 does not survive that: while it handles the exception it needs memory again, retries
    endlessly, and keeps the GIL (Python/ceval.c, exception_unwind), so that no more output is passed on.

    With another C library, the function does nothing.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
