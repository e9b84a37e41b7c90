"""Triton's interpreter, for machines without a GPU."""

import os
from dataclasses import replace


def interpret():
    """Call it before anything imports triton.

    The interpreter computes whether sums overflow and drops the answer: up to a third of its time,
    left out here.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime.interpreter import interpreter_builder

    interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)
