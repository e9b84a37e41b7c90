"""Randomness of a pass of its own: drawn from the operating system, and put back afterwards.

Idea     what a row draws (a dropout's mask) must depend on no other row, on no seed of the app and
         on nobody's number of draws before it. So every pass has the process's generators seeded by
         the operating system, and gives them back in the state in which it found them.
Source   docs/theory/sample-rows.md.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from quietbit.errors import InvalidParameter, require_module

__all__ = ["private_randomness", "private_randomness_of_code"]


@contextmanager
def private_randomness() -> Iterator[None]:
    """Seed torch's generators, on the CPU and on GPUs, from the operating system; restore them."""
    torch: Any = require_module("torch", "torch")
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators.extend(torch.cuda.default_generators)
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


@contextmanager
def private_randomness_of_code() -> Iterator[None]:
    """Do so for the generators of numpy and of Python, too, and refuse all that code brings."""
    numpy_state = np.random.get_state()  # noqa: NPY002 - what older code draws from
    python_state = random.getstate()
    try:
        np.random.seed(np.frombuffer(os.urandom(64), dtype=np.uint32))  # noqa: NPY002
        random.seed(os.urandom(64))
        with private_randomness(), _refuse_generators():
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def _refuse_generators() -> Any:
    """Return a mode in which torch refuses to draw from a generator that code names itself.

    Such a generator is shared by rows: each moves it on for the next.
    """
    torch: Any = require_module("torch", "torch")

    class Refusing(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            named = named or {}
            if any(isinstance(value, torch.Generator) for value in (*arguments, *named.values())):
                raise InvalidParameter.of(
                    "generator",
                    "left out where rows are computed, each of which has randomness of its own",
                    function,
                )
            return function(*arguments, **named)

    return Refusing()
