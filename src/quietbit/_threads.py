"""One thread for linear algebra: where systems are small, waiting for other threads costs more than they save.

Idea     libraries start a thread per core for every product, which made small solves twenty times
         slower on a busy machine. Work is spread over threads where it is large, by the code that
         knows it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["one_thread"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS and OpenMP on one thread inside the block; without threadpoolctl nothing changes but speed."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(limits=1):
        yield
