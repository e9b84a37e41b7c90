"""Options that several commands share, and how their words become the library's values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import quietbit
from quietbit.errors import InvalidDesignFile, require

__all__ = [
    "AdjacencyOption", "BetaOption", "BoundOption", "ClampOption", "DeltaOption", "DesignArgument", "DimensionOption",
    "NormOption", "PolicyArgument", "RadiusOption", "ReleasesOption", "SamplesOption", "TrustOption", "absolute",
    "bias_of", "catalogue_name", "find_design", "refuse_delta_zero",
]  # fmt: skip

DesignArgument = Annotated[
    str, typer.Argument(metavar="DESIGN", help="A design file, or a name that `quietbit catalogue` lists.")
]
PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help="The policy file.", show_default=False)]
NormOption = Annotated[str, typer.Option(metavar="l1|l2", help="Norm of the ball that updates are clipped to.")]
RadiusOption = Annotated[float, typer.Option(help="Radius of that ball.")]
DimensionOption = Annotated[int, typer.Option(help="Parameters in an update.")]
BetaOption = Annotated[float, typer.Option(help="Stretches small coordinates over the design's range.")]
ClampOption = Annotated[bool, typer.Option("--clamp", help="Cut inputs to [0, 1], as the published code does.")]
AdjacencyOption = Annotated[
    str,
    typer.Option(
        metavar="WORD",
        help="The neighbouring world: zero-out (the update is zero) or replace-one (any other in the ball).",
    ),
]
ReleasesOption = Annotated[int, typer.Option(help="How often the same party sends an update.")]
DeltaOption = Annotated[float, typer.Option(help="Delta of the guarantee.")]
SamplesOption = Annotated[
    int | None,
    typer.Option(help="Protect one sample of a client that has NUMBER (its update is a mean of clipped gradients)."),
]
TrustOption = Annotated[str, typer.Option(metavar="WORD", help="Who may look: local, central or secure-aggregation.")]
BoundOption = Annotated[
    bool, typer.Option("--bound/--no-bound", help="Compute how good any design could be (slow for many levels).")
]


def absolute(text: str) -> Path:
    """Return what a node config must name: the same file from wherever a process is started."""
    return Path(text).expanduser().absolute()


def bias_of(text: str) -> float | str:
    """Return a penalty where the text is a number, else the word itself, which the library judges."""
    try:
        return float(text)
    except ValueError:
        return text


def catalogue_name(design: quietbit.Design) -> str:
    """Return the name under which a shipped design is listed."""
    from quietbit.design.catalogue import file_name  # imported here, so that --help need not wait for numpy

    return file_name(design.spec).removesuffix(".json")


def find_design(text: str) -> quietbit.Design:
    """Return the design in a file, or the shipped one of this name."""
    from quietbit.design.catalogue import file_name, shipped, specs

    path = Path(text)
    if not path.exists():
        wanted = path.name if path.suffix == ".json" else path.name + ".json"
        spec = next((spec for spec in specs() if path.parent == Path() and file_name(spec) == wanted), None)
        found = shipped(spec) if spec is not None else None
        if found is not None:
            return found
        if not path.suffix:
            raise InvalidDesignFile(f"{text} is neither a file nor a name in the catalogue.")
    return quietbit.Design.load(path)


def refuse_delta_zero(delta: float, norm: quietbit.Norm) -> None:
    """Refuse a question about pure privacy, which no mechanism but vmvu gives on an L2 ball."""
    answerable = delta != 0 or norm is quietbit.Norm.L1
    require(answerable, "delta", delta, "above 0 for an l2 ball (pure privacy needs --norm l1)")
