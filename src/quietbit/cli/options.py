"""Options that several commands share, how their words become the library's values, and where results may go."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import quietbit
from quietbit.errors import (
    InvalidDesignFile,
    MissingDependency,
    QuietbitError,
    how_to_install,
    require,
)

__all__ = [
    "FORMATS",
    "OF_IMVU",
    "check_folder",
    "check_outputs",
    "chosen",
    "find_design",
    "find_imvu",
    "number_or_word",
    "option",
    "plotter",
    "takes",
    "usual",
]

FORMATS = ("png", "svg", "pdf")  # of a figure

# What several commands take: kind of value, meaning, and how the help writes the value or the flag.
USUAL: dict[str, tuple[Any, ...]] = {
    "adjacency": (
        str,
        "The neighbouring world: zero-out (a zero update) or replace-one (any in the ball).",
        "WORD",
    ),
    "beta": (float, "Stretches small coordinates over the design's range (imvu)."),
    "bound": (
        bool,
        "Compute how good any design could be (slow for many levels).",
        None,
        "--bound/--no-bound",
    ),
    "clamp": (bool, "Cut inputs to [0, 1], as the published code does (imvu)."),
    "delta": (float, "Delta of the guarantee."),
    "dimension": (int, "Parameters in an update."),
    "norm": (str, "Norm of the ball that updates are clipped to.", "l1|l2"),
    "radius": (float, "Radius of that ball."),
    "releases": (int, "How often the same party sends an update."),
    "samples": (
        int,
        "Protect one sample of a client that has NUMBER (its update is a mean of clipped gradients).",
    ),
    "trust": (str, "Who may look: local, central or secure-aggregation.", "WORD"),
}


def help_text(command: Callable[..., Any] | None) -> str:
    """Return a command's docstring with one line per paragraph, which a terminal folds where it ends.

    Brackets are escaped: Rich would read ``[choose]`` as a style and leave it out.
    """
    text = inspect.getdoc(command) or ""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(paragraphs).replace("[", "\\[")


def option(
    name: str,
    kind: Any,
    about: str,
    default: Any = None,
    metavar: str | None = None,
    flag: str = "",
) -> inspect.Parameter:
    """Return an option; without a default it may be left out, with ``...`` it may not; a bool's flag turns it on."""
    if kind is bool:
        flag = flag or "--" + name.replace("_", "-")
    told = typer.Option(*((flag,) if flag else ()), metavar=metavar, help=about)
    shape: Any = Annotated[kind | None if default is None else kind, told]
    given = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=shape)


def usual(name: str, default: Any = None) -> inspect.Parameter:
    """Return an option that several commands have."""
    kind, about, *shown = USUAL[name]
    return option(name, kind, about, default, *shown)


def takes(*options: inspect.Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator by which a command has these options before its own; they come by name or as ``**given``."""

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        named, own = (
            {one.name for one in options},
            inspect.signature(command, eval_str=True).parameters.values(),
        )
        others = [one for one in own if one.name not in named and one.kind is not one.VAR_KEYWORD]
        kept = [one.replace(kind=one.KEYWORD_ONLY) for one in others]
        command.__signature__ = inspect.Signature([*options, *kept])  # type: ignore[attr-defined]
        return command

    return with_options


# Of an interpolated mechanism and of what is asked about it.
OF_IMVU = (
    usual("adjacency", ...),
    usual("norm", "l2"),
    usual("beta", 1.0),
    usual("clamp", False),
    usual("radius", 1.0),
    usual("delta", 1e-5),
)


def chosen(given: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Return the options of these names, with blanks between."""
    return {name: given[name] for name in names.split()}


def number_or_word(text: str) -> float | str:
    """Return a number where the text is one, else the word itself, which the library judges."""
    try:
        return float(text)
    except ValueError:
        return text


def find_design(text: str) -> quietbit.Design:
    """Return the design in a file, or the shipped one of this name."""
    from quietbit.design.solve import (
        file_name,
        shipped,
        specs,
    )  # here, so that --help need not wait for numpy

    path = Path(text)
    spec = {file_name(spec): spec for spec in specs()}.get(
        f"{str(path).removesuffix('.json')}.json"
    )
    found = shipped(spec) if spec is not None and not path.exists() else None
    if found is None and not path.exists() and path.suffix != ".json":
        raise InvalidDesignFile(f"{text} is neither a file nor a name in the catalogue.")
    return quietbit.Design.load(path) if found is None else found


def find_imvu(text: str, given: Mapping[str, Any]) -> quietbit.InterpolatedMVU:
    """Return I-MVU with the design of this file or name, as the options say."""
    ball = quietbit.Ball(given["norm"], given["radius"], given["dimension"])
    return quietbit.InterpolatedMVU(find_design(text), ball, given["beta"], given["clamp"])


def check_outputs(*paths: Path | None, figures: tuple[Path | None, ...] = ()) -> None:
    """Refuse a path that cannot be written, is named twice, or is a figure of unknown format."""
    given = [path for path in (*paths, *figures) if path is not None]
    names = [str(path) for path in given]
    require(
        len({os.path.abspath(name) for name in names}) == len(names),
        "output paths",
        names,
        "different",
    )
    for path in figures:
        known = path is None or path.suffix.lower().removeprefix(".") in FORMATS
        require(known, "end of the figure's file name", str(path), "one of ." + ", .".join(FORMATS))
    for path in given:
        if path.is_dir():
            raise QuietbitError(f"Cannot write {path}: it is a folder.")
        with _refusing(path), tempfile.TemporaryFile(dir=path.parent):
            pass


def check_folder(folder: Path) -> None:
    """Make a folder for results, or say why not."""
    with _refusing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def plotter(name: str) -> Callable[..., Any]:
    """Return what draws a figure of this name, which the laboratory offers."""
    for entry in entry_points(group="quietbit.figures", name=name):
        return cast(Callable[..., Any], entry.load())
    raise MissingDependency(
        f"Figures are drawn by quietbit-lab, which is not installed: {how_to_install('lab')}."
    )


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise QuietbitError(f"Cannot write {path}: {error.strerror}.") from error
