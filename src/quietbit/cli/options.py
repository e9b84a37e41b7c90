"""Options that several commands share, and checks of the files that results go to."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import quietbit
from quietbit.errors import (
    InvalidDesignFile,
    QuietbitError,
    require,
)

__all__ = [
    "FORMATS",
    "check_outputs",
    "chosen",
    "find_design",
    "option",
    "refusing",
    "takes",
    "usual",
]

FORMATS = ("png", "svg", "pdf")  # of a figure

# Options that several commands share: type, meaning, and how the help writes value and flag.
USUAL: dict[str, tuple[Any, ...]] = {
    "adjacency": (
        str,
        "What neighbours differ in: zero-out (an update becomes zero), replace-one (any other).",
        "WORD",
    ),
    "beta": (float, "Stretch small coordinates over the design's range by this factor (imvu)."),
    "bound": (
        bool,
        "Compute a bound on the accuracy of any design (slow for many levels).",
        None,
        "--bound/--no-bound",
    ),
    "clamp": (bool, "Clip inputs to [0, 1], as the published code does (imvu)."),
    "delta": (float, "Delta of the guarantee."),
    "dimension": (int, "Parameters in an update."),
    "norm": (str, "Norm of the ball that updates are clipped to.", "l1|l2"),
    "releases": (int, "How many updates one client sends."),
    "samples": (
        int,
        "Protect one sample of a site with this many; an update is a mean of clipped gradients.",
    ),
    "trust": (str, "Trust model: local, central or secure-aggregation.", "WORD"),
}


def help_text(command: Callable[..., Any] | None) -> str:
    """Return a command's docstring with one line per paragraph, which the terminal wraps.

    Brackets are escaped, because Rich would read ``[choose]`` as a style and drop it.
    """
    text = (command is not None and inspect.getdoc(command)) or ""
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
    """Return an option; the default ``...`` makes it required, and None lets it be left out."""
    flags = [flag] if flag else []
    if kind is bool and not flag:
        flags = ["--" + name.replace("_", "-")]
    info = typer.Option(*flags, metavar=metavar, help=about)
    if default is None:
        kind = kind | None
    if default is ...:
        default = inspect.Parameter.empty
    annotation: Any = Annotated[kind, info]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def usual(name: str, default: Any = None) -> inspect.Parameter:
    """Return one of the shared options, with this command's default."""
    kind, about, *shown = USUAL[name]
    return option(name, kind, about, default, *shown)


def takes(*options: inspect.Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that puts these options before a command's own; ``**given`` gets them."""

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        names = {parameter.name for parameter in options}
        parameters = list(options)
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            is_rest = parameter.kind is inspect.Parameter.VAR_KEYWORD
            if parameter.name not in names and not is_rest:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return with_options


# Options of an interpolated mechanism and its guarantee.
def chosen(given: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Return the options of these names, which are separated by blanks."""
    return {name: given[name] for name in names.split()}


def find_design(text: str) -> quietbit.Design:
    """Return the design in a file, or the shipped one of this name."""
    # Imported here, so that --help need not wait for numpy.
    from quietbit.design.solve import file_name, shipped, specs

    path = Path(text)
    if path.exists():
        return quietbit.Design.load(path)
    names = {file_name(spec): spec for spec in specs()}
    spec = names.get(f"{str(path).removesuffix('.json')}.json")
    design = None if spec is None else shipped(spec)
    if design is not None:
        return design
    if path.suffix != ".json":
        raise InvalidDesignFile(
            f"{text} is neither a file nor the name of a shipped design: see quietbit catalogue."
        )
    return quietbit.Design.load(path)


def check_outputs(*paths: Path | None, figures: tuple[Path | None, ...] = ()) -> None:
    """Refuse a path that cannot be written, is named twice, or is a figure of unknown format."""
    given = [path for path in (*paths, *figures) if path is not None]
    names = [str(path) for path in given]
    are_different = len({os.path.abspath(name) for name in names}) == len(names)
    require(are_different, "output paths", names, "different")
    for path in figures:
        if path is not None and path.suffix.lower().removeprefix(".") not in FORMATS:
            raise QuietbitError(
                f"Cannot draw {path}: end its name with one of .{', .'.join(FORMATS)}."
            )
    for path in given:
        if path.is_dir():
            raise QuietbitError(f"Cannot write {path}: it is a folder. Name a file in it.")
        with refusing(path), tempfile.TemporaryFile(dir=path.parent):
            pass


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Refuse a path that the system does not let us write."""
    try:
        yield
    except OSError as error:
        raise QuietbitError(f"Cannot write {path}: {error.strerror}.") from error
