"""Options that several commands share, and how their words become the library's values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import quietbit
from quietbit.errors import InvalidDesignFile, require

__all__ = [
    "ADJACENCY", "NORM", "SAMPLES", "TRUST", "AdjacencyOption", "BetaOption", "BoundOption", "ClampOption",
    "DeltaOption", "DesignArgument", "DimensionOption", "NormOption", "RadiusOption", "ReleasesOption", "SamplesOption",
    "absolute", "bias_of", "catalogue_name", "chosen", "find_design", "option", "refuse_delta_zero", "takes",
]  # fmt: skip

DesignArgument = Annotated[
    str, typer.Argument(metavar="DESIGN", help="A design file, or a name that `quietbit catalogue` lists.")
]
NORM = "Norm of the ball that updates are clipped to."
ADJACENCY = "The neighbouring world: zero-out (the update is zero) or replace-one (any other in the ball)."
SAMPLES = "Protect one sample of a client that has NUMBER (its update is a mean of clipped gradients)."
TRUST = "Who may look: local, central or secure-aggregation."
NormOption = Annotated[str, typer.Option(metavar="l1|l2", help=NORM)]
RadiusOption = Annotated[float, typer.Option(help="Radius of that ball.")]
DimensionOption = Annotated[int, typer.Option(help="Parameters in an update.")]
BetaOption = Annotated[float, typer.Option(help="Stretches small coordinates over the design's range.")]
ClampOption = Annotated[bool, typer.Option("--clamp", help="Cut inputs to [0, 1], as the published code does.")]
AdjacencyOption = Annotated[str, typer.Option(metavar="WORD", help=ADJACENCY)]
ReleasesOption = Annotated[int, typer.Option(help="How often the same party sends an update.")]
DeltaOption = Annotated[float, typer.Option(help="Delta of the guarantee.")]
SamplesOption = Annotated[int | None, typer.Option(help=SAMPLES)]
BoundOption = Annotated[
    bool, typer.Option("--bound/--no-bound", help="Compute how good any design could be (slow for many levels).")
]


def option(
    name: str, kind: Any, about: str, default: Any = None, metavar: str | None = None, flag: str = ""
) -> inspect.Parameter:
    """Return an option of a table; without a default it may be left out, and with ``...`` it may not."""
    told = typer.Option(*((flag,) if flag else ()), metavar=metavar, help=about)
    shape: Any = Annotated[kind | None if default is None else kind, told]
    given = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=shape)


def takes(options: Sequence[inspect.Parameter]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator by which a command has these options before its own, and gets them as ``**given``."""

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [one.replace(kind=one.KEYWORD_ONLY) for one in own if one.kind is not one.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*options, *kept])  # type: ignore[attr-defined]
        return command

    return with_options


def chosen(given: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Return the options of these names, with blanks between."""
    return {name: given[name] for name in names.split()}


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
    from quietbit.design.solve import file_name  # imported here, so that --help need not wait for numpy

    return file_name(design.spec).removesuffix(".json")


def find_design(text: str) -> quietbit.Design:
    """Return the design in a file, or the shipped one of this name."""
    from quietbit.design.solve import file_name, shipped, specs

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
