"""The files of a job as text and values: nothing is imported, run, written, or read without limit.

Idea     a folder, a zip or one file becomes a list of small texts. Whoever sends a job may be
         hostile: sizes are checked before and while reading, links and pipes are refused, names in
         a zip may not leave it, and values nest to a limited depth.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn, final

from attrs import field, frozen

from quietbit.check.values import Place, Value
from quietbit.errors import QuietbitError, one_line, require, require_module

__all__ = ["Source", "Sources", "Unreadable", "read_job", "refuse"]

# The most bytes of a file: what its parser takes a second or two for.
SMALL = 20_000  # HOCON and YAML
LIMIT = 200_000  # JSON, TOML and Python
MOST_BYTES = 200_000  # of a job's Python and configurations together
# The configurations of engines; a job may have data in these formats besides.
STEMS = {"config_fed_client", "config_fed_server", "pyproject"}
MOST_ENTRIES = 20_000
MOST_DEPTH = 40  # of values in values
DEFAULT = ".default"  # NVFlare reads config.json.default, too
INCLUDE = re.compile(r"(?:^|[\s{,])include\s*[\"(\w]", re.MULTILINE)


class Unreadable(QuietbitError):
    """A job that cannot be read, with the reason in one sentence."""


@final
@frozen
class Source:
    """One file of a job; ``name`` is its path inside the job."""

    name: str
    text: str = field(repr=False)

    @property
    def ending(self) -> str:
        """The ending that says how to read it."""
        return PurePosixPath(self.name.removesuffix(DEFAULT)).suffix

    @property
    def stem(self) -> str:
        """The name without folders and endings."""
        return PurePosixPath(self.name).name.partition(".")[0]

    def place_of(self, words: str) -> Place:
        """Return the line where these words first stand."""
        return Place(self.name, self.text.split(words or None, 1)[0].count("\n") + 1)

    def values(self) -> dict[str, Value]:
        """Return the values of a configuration, of limited depth."""
        try:
            values = _PARSERS[self.ending](self.text)
            depth = _depth(values)
        except QuietbitError:
            raise
        except Exception as error:  # parsers have many; a RecursionError is one
            refuse(self.name, f"cannot be read ({one_line(error, 120)})")
        if depth > MOST_DEPTH or not isinstance(values, dict):
            refuse(self.name, f"must hold a table of values, nested at most {MOST_DEPTH} deep")
        return values

    def tree(self) -> ast.Module:
        """Return the syntax of a Python file."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = one_line(error, 120) or "nested too deep"
            refuse(self.name, f"is not Python that can be read ({why})")


@final
class Sources:
    """All readable files of a job, by name."""

    def __init__(self, title: str, sources: list[Source]) -> None:
        self.title = title
        self._sources = sorted(sources, key=lambda source: source.name)

    def ending(self, *endings: str) -> Iterator[Source]:
        """Return the files with one of these endings."""
        return (source for source in self._sources if source.ending in endings)

    def called(self, stem: str) -> Iterator[Source]:
        """Return the configurations of this name, in any format."""
        found = (source for source in self._sources if source.stem == stem)
        return (source for source in found if source.ending in _PARSERS)


def refuse(name: str, why: str) -> NoReturn:
    """Raise `Unreadable` about a file."""
    raise Unreadable(f"{one_line(name, 120)} {why}.")


def read_job(path: Path) -> Sources:
    """Read a job: a folder, a zip, or one file."""
    try:
        if path.is_dir():
            sources = list(_of_folder(path))
        elif not path.is_file():
            refuse(str(path), "is not a file or a folder")
        elif zipfile.is_zipfile(path):
            sources = list(_of_zip(path))
        else:
            sources = [_source(path.name, path.open("rb"))] if _limit(path.name) else []
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        refuse(str(path), f"cannot be read ({one_line(error, 120)})")
    if sum(len(source.text) for source in sources) > MOST_BYTES:
        most = f"{MOST_BYTES:,} bytes of Python and configurations"
        refuse(str(path), f"has more than {most}: give its folder of configurations alone")
    if not sources:
        refuse(str(path), "is not a job: it has no configuration and no Python")
    return Sources(str(path), sources)


def _limit(name: str) -> int:
    """Return the most bytes of a file that is read; 0 for others."""
    path = PurePosixPath(name.removesuffix(DEFAULT))
    if path.suffix == ".py":
        return LIMIT
    if path.name.partition(".")[0] not in STEMS or path.suffix not in _PARSERS:
        return 0
    return LIMIT if path.suffix in (".json", ".toml") else SMALL


def _source(name: str, file: IO[bytes]) -> Source:
    """Read a file up to its limit, and close it."""
    limit = _limit(name)
    with file:
        content = file.read(limit + 1)
    if len(content) > limit:
        refuse(name, f"is larger than the {limit:,} bytes that are read of such a file")
    try:
        return Source(name, content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        refuse(name, "is not text in UTF-8")


def _of_folder(root: Path) -> Iterator[Source]:
    """Read the files below a folder; links are refused, because they may lead anywhere."""
    entries = 0
    for folder, folders, files in os.walk(root):
        entries += len(folders) + len(files)
        if entries > MOST_ENTRIES:
            refuse(str(root), f"has more than {MOST_ENTRIES:,} files: name the job's folder")
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in files if _limit(name)):
            name = path.relative_to(root).as_posix()
            if not stat.S_ISREG(path.lstat().st_mode):
                refuse(name, "is a link or a special file, which are not followed")
            yield _source(name, path.open("rb"))


def _of_zip(path: Path) -> Iterator[Source]:
    """Read the files of a zip, as far as their limits, whatever its directory says of sizes."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MOST_ENTRIES:
            refuse(str(path), f"has more than {MOST_ENTRIES:,} files")
        for member in members:
            name = PurePosixPath(member.filename.replace("\\", "/"))
            if name.is_absolute() or ".." in name.parts:
                refuse(str(path), f"has a file outside itself ({one_line(member.filename, 80)})")
            if _limit(name.name) and not any(part.startswith(".") for part in name.parts):
                yield _source(str(name), archive.open(member))


def _depth(value: Value) -> int:
    """Return how deep values nest."""
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0) if isinstance(inner, list) else 0


def _yaml(text: str) -> Any:
    """Read YAML without references, by which a short text becomes a large or an endless value."""
    yaml = require_module("yaml", "nvflare")
    has_alias = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
    require(not has_alias, "*name", "a reference", "left out: it is not followed")
    return yaml.safe_load(text)


def _hocon(text: str) -> Any:
    """Read HOCON without its includes, which name other files and addresses."""
    require(not INCLUDE.search(text), "include", "another file", "left out: it is not followed")
    factory = require_module("pyhocon", "nvflare").ConfigFactory
    # A substitution stays what it is, and not a number.
    return factory.parse_string(text, resolve=False).as_plain_ordered_dict()


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".conf": _hocon,
    ".yml": _yaml,
    ".yaml": _yaml,
    ".toml": tomllib.loads,
}
