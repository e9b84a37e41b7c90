"""Calls of a job's Python with the values of their arguments, read from its syntax.

Idea     nothing is run: a name has the value that all of its assignments in a file agree on, a
         parameter its default where its function is never called with arguments,
         `context.run_config` is the app's table. Everything else is computed when the job runs, and
         stays `Unknown`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias, final

from quietbit.check.reader import Source
from quietbit.check.values import REST, Given, Place, Unknown, Use, Value

__all__ = ["Program"]

MOST_NAMES = 30  # from a value to the literal that it is
EVENT = "DpEvent"
NOTHING = object()
Node: TypeAlias = Any  # of the syntax


Found: TypeAlias = defaultdict[str, list[tuple[Node, str]]]  # with the files


@final
class Program:
    """The Python files of a job, and the table that Flower calls its run config."""

    def __init__(
        self,
        sources: Iterable[Source],
        config: Mapping[str, Value],
        given: Given,
        parameters: Mapping[str, Sequence[str]],
    ) -> None:
        """Index the files; ``parameters`` are those of the classes that laws know, by name."""
        self.config = config
        self.words: dict[str, Place] = {}  # every name that is used, where it first stands
        self._given = given
        self._parameters = parameters
        self._calls: Found = defaultdict(list)
        self._keys: Found = defaultdict(list)  # of calls and tables
        # What is bound to `module.name`.
        self._bound: Found = defaultdict(list)
        self._defaults: dict[Node, tuple[Node, str]] = {}  # of parameters, and of which function
        self._values: dict[str, Value] = {}
        self._open: set[str] = set()  # names whose value is being looked for
        self._inner: set[Node] = set()  # events inside others
        for source in sources:
            self._index(source.tree(), source.name)

    def uses(self, *names: str) -> list[Use]:
        """Return the calls of these names, but for events that are arguments of other events."""
        found = []
        for name in names:
            for call, file in self._calls.get(name, ()):
                found.append((call, self._use(name, call, file)))
        return [use for call, use in found if call not in self._inner]

    def keywords(self, key: str) -> list[Value]:
        """Return the value of this keyword, or of this key of a table, wherever it is written."""
        return [self._value(node, file, key) for node, file in self._keys.get(key, ())]

    def _index(self, tree: ast.Module, file: str) -> None:
        """Note every call, key and name of a file, and what is bound to names."""
        module = PurePosixPath(file).stem
        waiting: list[Node] = [tree]
        while waiting:
            node = waiting.pop()
            children = ast.iter_child_nodes(node)
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    self._bound[f"{module}.{name}"].append((value, file))
                    children = iter([value])
                case ast.ImportFrom(module=str(path), names=names):
                    for alias in names:
                        origin = ast.Attribute(ast.Name(path.rpartition(".")[2]), alias.name)
                        name = alias.asname or alias.name
                        self._bound[f"{module}.{name}"].append((origin, file))
                case ast.Call(func=function):
                    self._calls[_name(function)].append((node, file))
                    if _name(function) == "update":  # of a table, whose name then has two values
                        table = _name(getattr(function, "value", None))
                        self._bound[f"{module}.{table}"].append((node, file))
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                    self._bound[f"{module}.{name}"].append((node, file))
                case ast.keyword(arg=str(name), value=value):
                    self._keys[name].append((value, file))
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        self._keys[str(getattr(key, "value", ""))].append((value, file))
                case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
                    pairs = zip(arguments.args[::-1], arguments.defaults[::-1], strict=False)
                    for argument, default in pairs:
                        self._defaults[argument] = (default, node.name)
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    self._bound[f"{module}.{name}"].append((node, file))
                case ast.Attribute(value=ast.Name(id=owner), attr=name, ctx=ast.Store()):
                    self._bound[f"{owner}.{name}"].append((node, file))
            if isinstance(node, ast.Name | ast.Attribute | ast.alias):
                self.words.setdefault(_name(node), _place(node, file))
            waiting += children

    def _use(self, name: str, call: Node, file: str) -> Use:
        """Return a call with its arguments by the names of their parameters."""
        arguments: dict[str, Value] = {}
        for parameter, argument in zip(self._parameters.get(name, ()), call.args, strict=False):
            if isinstance(argument, ast.Starred):
                arguments[REST] = Unknown(parameter, _place(call, file))
                break
            arguments[parameter] = self._value(argument, file, parameter)
        for keyword in call.keywords:
            value = self._value(keyword.value, file, keyword.arg or REST)
            if keyword.arg is None and isinstance(value, dict):
                arguments |= value
            else:
                arguments[keyword.arg or REST] = value
        return Use(name, arguments, _place(call, file), self._given)

    def _value(self, node: Node, file: str, name: str) -> Value:
        """Return the value of an expression, or an `Unknown` of this name."""
        try:
            value = self._known(node, file, name)
        except (ValueError, TypeError, AttributeError, RecursionError, MemoryError):
            value = NOTHING
        if isinstance(value, Unknown):
            return Unknown(name, value.place)
        return Unknown(name, _place(node, file)) if value is NOTHING else value

    def _known(self, node: Node, file: str, name: str) -> Value:
        match node:
            case ast.Name(id=word):
                return self._agreed(f"{PurePosixPath(file).stem}.{word}", name)
            case ast.arg() if node in self._defaults:
                default, function = self._defaults[node]
                calls = self._calls.get(function, ())
                passed = any(call.args or call.keywords for call, _ in calls)
                hidden = function.startswith("__") or (not calls and function in self.words)
                if not passed and not hidden:
                    return self._value(default, file, name)
            case ast.Attribute(attr="run_config"):
                return self.config or NOTHING
            case ast.Attribute(value=ast.Name(id=owner), attr=word):
                return self._agreed(f"{owner}.{word}", name)
            case ast.Subscript(value=table, slice=ast.Constant(value=key)):
                return self._value(table, file, name).get(key, NOTHING)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *rest]):
                default = self._value(rest[0], file, name) if rest else NOTHING
                return self._value(table, file, name).get(ast.literal_eval(key), default)
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[inner]):
                number = self._value(inner, file, name)
                return number if kind == "float" or isinstance(number, int) else NOTHING
            case ast.Call(func=function) if _name(function).endswith(EVENT):
                self._inner.add(node)
                return self._use(_name(function), node, file)
        return ast.literal_eval(node)

    def _agreed(self, key: str, name: str) -> Value:
        """Return the value that all that is bound to a name agrees on."""
        if key in self._open or len(self._open) > MOST_NAMES:
            return NOTHING
        if key not in self._values:
            self._open.add(key)
            values = [self._value(node, file, name) for node, file in self._bound.get(key, ())]
            self._open.remove(key)
            agreed = bool(values) and all(value == values[0] for value in values)
            self._values[key] = values[0] if agreed else NOTHING
        return self._values[key]


def _name(node: Node) -> str:
    """Return the last name of an expression or import; empty for others."""
    for key in ("attr", "id", "name"):
        if hasattr(node, key):
            return str(getattr(node, key))
    return ""


def _place(node: Node, file: str) -> Place:
    return Place(file, getattr(node, "lineno", 1))
