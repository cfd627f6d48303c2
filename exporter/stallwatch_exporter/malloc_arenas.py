"""Limit the address space that the agent's process needs, and check that this space is available."""

from __future__ import annotations

import contextlib
import mmap

_M_ARENA_MAX = -8  # value from malloc/malloc.h in glibc
_NEEDED_MB = 128  # Two heaps of 64 MB. In a measurement, ``stallwatch run`` worked with 117 MB.


def check_address_space() -> None:
    """Raise `MemoryError` if this process cannot reserve the address space that watching a run needs.

    If less address space is available, a library that starts in a thread can abort the process.
    ``Thread.start`` can also wait forever for a thread that ran out of memory before it began (CPython 3.11,
    threading.py).
    """
    try:
        mmap.mmap(-1, _NEEDED_MB << 20).close()
    except OSError:
        raise MemoryError(f"less than {_NEEDED_MB} MB of address space is left") from None


def limit_malloc_arenas() -> None:
    """Limit all threads to two shared heaps because glibc would reserve up to 128 MB for each thread.

    Under an address space limit (``ulimit -v``), a new thread could otherwise fail to allocate any memory.
    CPython 3.11 stops responding in that case, because its exception handling also needs memory, retries
    endlessly, and keeps the GIL (Python/ceval.c, exception_unwind). The agent then forwards no more output.
    If the C library is not glibc, the function does nothing.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
