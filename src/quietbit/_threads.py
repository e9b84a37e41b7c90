"""One thread for linear algebra of small systems, where more threads cost more than they save.

Idea     libraries start a thread per core for every product, which made small solves twenty times
         slower on a busy machine. Code that knows its work to be large spreads it over threads
         itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["one_thread"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS and OpenMP on one thread inside the block; has no effect without threadpoolctl."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(limits=1):
        yield
