"""The shipped designs: the paper's epsilons, for two and eight levels and one to four bits.

Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters": every epsilon of its tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design

__all__ = ["catalogue", "file_name", "shipped", "specs"]

EPSILONS = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 20.0)
BITS = (1, 2, 3, 4)
LEVELS = (2, 8)
PENALTY = 100.0


def specs() -> Iterator[DesignSpec]:
    """Every spec of the catalogue, in the order it is listed."""
    for bias in ("exact", PENALTY):
        for levels in LEVELS:
            for bits in BITS:
                for epsilon in EPSILONS:
                    yield DesignSpec(levels, bits, epsilon, "metric-l1", bias)


def file_name(spec: DesignSpec) -> str:
    """Return the name of the file that holds the shipped design for a spec."""
    bias = spec.bias if spec.bias == "exact" else f"penalty-{spec.bias:g}"
    return f"{spec.privacy}_levels-{spec.input_levels}_bits-{spec.output_bits}_eps-{spec.epsilon:g}_{bias}.json"


def shipped(spec: DesignSpec) -> Design | None:
    """Return the shipped design for exactly this spec, or ``None``."""
    listed = spec.privacy == "metric-l1" and spec.epsilon in EPSILONS and spec.bias in ("exact", PENALTY)
    if not listed or spec.input_levels not in LEVELS or spec.output_bits not in BITS:
        return None
    source = files(__name__) / file_name(spec)
    return Design.parse(source.read_text(encoding="ascii"), source.name)


def catalogue() -> Iterator[Design]:
    """Every shipped design."""
    for spec in specs():
        design = shipped(spec)
        if design is not None:
            yield design
