"""Calls of a job's Python with the values of their arguments, read from its syntax.

Idea     nothing is run, and all files are read as one: a name has the value that all of its
         assignments agree on, wherever they are, and `context.run_config` is the app's table.
         Everything else is computed when the job runs, and stays `Unknown`. A class is an engine's
         unless the job binds its name or imports it from elsewhere. A call under a condition that
         the values decide against is not made; what else must be true for it to be made is noted.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias, final

from attrs import evolve, frozen

from quietbit.check.reader import Source
from quietbit.check.values import PACKAGES, REST, Given, Place, Unknown, Use, Value

__all__ = ["Program"]

MOST_VALUES = 20_000  # that are looked for in a job
CHANGING = {"append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}
ASKED = ("event", "events", "mods", "strategy")  # parameters whose calls count where they stand
NOTHING = object()
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)
Node: TypeAlias = Any  # of the syntax


@final
@frozen(eq=False)
class Spot:
    """A piece of syntax in a file, and the tests, loops and functions that it stands under."""

    node: Node
    file: str
    under: tuple[Node, ...] = ()

    @property
    def place(self) -> Place:
        """Its line."""
        line, column = getattr(self.node, "lineno", 1), getattr(self.node, "col_offset", 0)
        return Place(self.file, line, column)

    def at(self, node: Node) -> Spot:
        """Return another piece that stands under the same."""
        return evolve(self, node=node)

    def inner(self) -> Iterator[Spot]:
        """Return the pieces of this one."""
        node = self.node
        tests: dict[str, Node] = {}
        if isinstance(node, ast.If | ast.IfExp):
            opposite = ast.UnaryOp(ast.Not(), node.test, lineno=node.lineno)
            tests = {"body": node.test, "orelse": opposite}
        elif isinstance(node, (*LOOPS, *FUNCTIONS)):
            tests = {"body": node}
        for name, value in ast.iter_fields(node):
            under = (*self.under, tests[name]) if name in tests else self.under
            for piece in value if isinstance(value, list) else [value]:
                if isinstance(piece, ast.AST):
                    yield Spot(piece, self.file, under)


Spots: TypeAlias = defaultdict[str, list[Spot]]


@final
class Program:
    """The Python files of a job, and the table that Flower calls its run config."""

    def __init__(
        self,
        sources: Iterable[Source],
        given: Given,
        parameters: Mapping[str, Sequence[str]],
        config: Mapping[str, Value],
    ) -> None:
        """Index the files; ``parameters`` are those of the classes that laws know, by name."""
        self.config = config
        self.words: dict[str, Place] = {}  # every name that is used, where it first stands
        self._given = given
        self._parameters = parameters
        self._calls: Spots = defaultdict(list)
        self._bound: Spots = defaultdict(list)  # to a name
        self._real: dict[str, str] = {}  # names of what imports rename
        self._modules: set[str] = set()  # of the job, by the names that imports give them
        self._foreign: set[str] = set()  # names of what is imported from elsewhere
        self._changed: dict[str, Place] = {}  # attributes and keys that are assigned
        self._open: set[Node] = set()  # values that are being looked for
        self._inner: set[Node] = set()  # calls that are arguments of others
        self._left = MOST_VALUES
        spots = [Spot(source.tree(), source.name) for source in sources]
        self._files = {part for spot in spots for part in PurePosixPath(spot.file).parts}
        while spots:
            spots += self._note(spots.pop())

    def uses(self, *names: str) -> list[Use]:
        """Return the calls of these names that are made, but for arguments of other calls."""
        spots = [spot for name in names for spot in self._spots(name)]
        found = [use for spot in spots if (use := self._use(spot)) is not None]
        return [use for use in found if use.node not in self._inner]

    def called(self, ending: str) -> list[str]:
        """Return the names with this ending that are called."""
        return [name for name in self._calls if name.endswith(ending)]

    def keywords(self, key: str) -> list[Value]:
        """Return the value of this keyword of any call."""
        return [self._value(spot, key) for spot in self._calls.get(f"{key}=", ())]

    def owners(self, method: str) -> list[Value]:
        """Return the objects whose method is called."""
        functions = [spot.at(spot.node.func) for spot in self._spots(method)]
        owned = [spot for spot in functions if isinstance(spot.node, ast.Attribute)]
        return [self._value(spot.at(spot.node.value), method) for spot in owned]

    def _spots(self, name: str) -> list[Spot]:
        """Return the calls of a name, however imports rename it."""
        names = [name, *(other for other in self._real if self._real[other] == name != other)]
        return [spot for other in names for spot in self._calls.get(other, ())]

    def _note(self, spot: Spot) -> Iterable[Spot]:
        """Note a call, a name, or what is bound to it; return the pieces to be noted next."""
        node = spot.node
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                self._bound[name].append(spot.at(value))
                return [spot.at(value)]
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.ClassDef(name=name):
                self._bound[name].append(spot)
            case ast.FunctionDef(name=name, decorator_list=marks):
                self._bound[name].append(spot)
                for mark in marks:
                    if isinstance(mark, ast.Call):
                        self._calls[f"@{_last(mark.func)}"].append(spot.at(mark))
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    self._import(spot, alias)
            case ast.Call(func=function):
                self._note_call(spot, _last(function), _last(getattr(function, "value", None)))
            case ast.keyword(arg=str(name), value=value):
                self._calls[f"{name}="].append(spot.at(value))
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):
                if _last(owner) not in ("self", "cls"):
                    self._changed[name] = spot.place
            case ast.Subscript(value=owner, slice=key, ctx=ast.Store() | ast.Del()):
                self._bound[_last(owner)].append(spot)
                self._changed[f"[{getattr(key, 'value', '')}]"] = spot.place
        if isinstance(node, ast.Name | ast.Attribute):
            self.words.setdefault(_last(node), spot.place)
        return spot.inner()

    def _import(self, spot: Spot, alias: ast.alias) -> None:
        """Note a name that a file imports: from an engine, from the job, or from elsewhere."""
        module = getattr(spot.node, "module", None) or ""
        parts = [part for part in f"{module}.{alias.name}".split(".") if part]
        name = alias.asname or parts[-1 if module else 0]
        self.words.setdefault(parts[0], spot.place)
        self.words.setdefault(parts[-1], spot.place)
        self._real[name] = parts[-1]
        files = {*parts, *(f"{part}.py" for part in parts)}
        if getattr(spot.node, "level", 0) or not files.isdisjoint(self._files):
            self._modules.add(name)
        elif parts[0] not in PACKAGES:
            self._foreign.add(name)

    def _note_call(self, spot: Spot, name: str, owner: str) -> None:
        """Note a call, and what it changes: a list, a table, or an attribute by its name."""
        self._calls[name].append(spot)
        if "seed" in name:
            self._calls[f"{owner}.{name}"].append(spot)
        if name == "setattr":
            self._changed[str(getattr(spot.node.args[1], "value", ""))] = spot.place
        elif name in CHANGING:
            self._bound[owner].append(spot)
            for keyword in spot.node.keywords:
                self._changed[f"[{keyword.arg}]"] = spot.place

    def _is_engines(self, function: Node) -> bool:
        """Say whether neither the job nor a package that is no engine defines a function."""
        first, name = function, _last(function)
        while isinstance(first, ast.Attribute):
            first = first.value
        names = {name, _last(first)}
        bound = names if name[:1].isupper() else {name}  # methods are of variables
        return self._foreign.isdisjoint(names) and self._bound.keys().isdisjoint(bound)

    def _use(self, spot: Spot) -> Use | None:
        """Return a call with its arguments by the names of their parameters; None if not made."""
        needs = []
        for outer in spot.under:
            place = spot.at(outer).place
            if isinstance(outer, ast.expr):
                value = self._value(spot.at(outer), "condition")
                if not value:
                    return None
                if isinstance(value, Unknown) and "__name__" not in ast.unparse(outer):
                    needs.append(f"the condition at {place}")
            elif isinstance(outer, FUNCTIONS) and not outer.decorator_list:
                is_method = [one.arg for one in outer.args.args[:1]] == ["self"]
                if not is_method and outer.name not in self.words:
                    needs.append(f"a call of {outer.name} ({place})")
        function = spot.node.func
        name = self._real.get(_last(function), _last(function))
        parameters = self._parameters.get(name, ())
        arguments = self._arguments(spot, parameters)
        for parameter in self._changed.keys() & set(parameters):
            arguments[parameter] = Unknown(parameter, self._changed[parameter])
        if not self._is_engines(function):
            name = f"{name} of its own"
        repeated = any(isinstance(outer, LOOPS) for outer in spot.under)
        return Use(name, arguments, spot.place, self._given, tuple(needs), repeated, node=spot.node)

    def _arguments(self, spot: Spot, parameters: Sequence[str]) -> dict[str, Value]:
        arguments: dict[str, Value] = {}
        self._open.add(spot.node)
        for parameter, argument in zip(parameters, spot.node.args, strict=False):
            if isinstance(argument, ast.Starred):
                arguments[REST] = Unknown(parameter, spot.place)
                break
            arguments[parameter] = self._value(spot.at(argument), parameter)
        for keyword in spot.node.keywords:
            value = self._value(spot.at(keyword.value), keyword.arg or REST)
            if keyword.arg is None and isinstance(value, dict):
                arguments |= value
            else:
                arguments[keyword.arg or REST] = value
        self._open.discard(spot.node)
        for value in [arguments.get(parameter) for parameter in ASKED]:
            uses = value if isinstance(value, list) else [value]
            self._inner |= {use.node for use in uses if isinstance(use, Use)}
        return arguments

    def _value(self, spot: Spot, name: str) -> Value:
        """Return the value of an expression, or an `Unknown` of this name."""
        self._left -= 1
        try:
            value = self._known(spot, name) if self._left > 0 else NOTHING
        except (ValueError, TypeError, AttributeError, RecursionError, MemoryError):
            value = NOTHING
        if isinstance(value, Unknown):
            return Unknown(name, value.place)
        return Unknown(name, spot.place) if value is NOTHING else value

    def _known(self, spot: Spot, name: str) -> Value:
        node = spot.node
        real = self._real.get(_last(node), _last(node))
        match node:
            case ast.Attribute(attr="run_config"):
                return self.config or NOTHING
            case ast.Name() | ast.Attribute() if real in self._parameters:
                if self._is_engines(node):
                    return Use(real, {}, spot.place, self._given)
                return self._agreed(real, name)
            case ast.Name(ctx=ast.Load()):
                return self._agreed(real, name)
            case ast.Attribute(value=ast.Name(id=owner)):
                is_module = owner in self._modules and owner not in self._bound
                return self._agreed(real, name) if is_module else NOTHING
            case ast.Subscript(value=table, slice=ast.Constant(value=key)):
                return self._entry(spot.at(table), key, NOTHING, name)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *rest]):
                default = self._value(spot.at(rest[0]), name) if rest else NOTHING
                return self._entry(spot.at(table), ast.literal_eval(key), default, name)
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[inner]):
                number = self._value(spot.at(inner), name)
                return number if kind == "float" or isinstance(number, int) else NOTHING
            case ast.Call(func=function):
                called = self._real.get(_last(function), _last(function))
                if called in self._parameters or called.endswith("DpEvent"):
                    return self._use(spot) or NOTHING
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self._value(spot.at(operand), name)
                return value if isinstance(value, Unknown) else not value
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._value(spot.at(element), name) for element in elements]
        return ast.literal_eval(node)

    def _entry(self, table: Spot, key: Value, default: Value, name: str) -> Value:
        """Return a value of a table, unless one of this key is assigned somewhere."""
        if f"[{key}]" in self._changed:
            return NOTHING
        return self._value(table, name).get(key, default)

    def _agreed(self, word: str, name: str) -> Value:
        """Return the value that all that is bound to a name agrees on, but for what asks for it."""
        spots = [spot for spot in self._bound.get(word, ()) if spot.node not in self._open]
        values = []
        for spot in spots:
            self._open.add(spot.node)
            values.append(self._value(spot, name))
            self._open.discard(spot.node)
        agreed = (
            bool(values) and word not in self._changed and all(one == values[0] for one in values)
        )
        return values[0] if agreed else NOTHING


def _last(node: Node) -> str:
    """Return the last name of an expression; empty for others."""
    return str(getattr(node, "attr", getattr(node, "id", "")))
