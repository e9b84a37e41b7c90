"""Calls of a job's Python with the values of their arguments, read from its syntax.

Idea     nothing is run: a name has the value that all of its assignments in a file agree on, a
         parameter its default where its function is never called with arguments,
         `context.run_config` is the app's table. Everything else is computed when the job runs, and
         stays `Unknown`. A class is an engine's unless the job binds its name or imports it from
         elsewhere. A call under a condition that the values decide against is not made; what else
         must be true for it to be made is noted with it.
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

MOST_VALUES = 100_000  # that are looked for in a job
EVENT = "DpEvent"
CHANGING = {"append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}
NOTHING = object()
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp)
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
        return Place(self.file, getattr(self.node, "lineno", 1))

    def key(self, name: str) -> str:
        """Return a name with the module that it is bound in."""
        return f"{PurePosixPath(self.file).stem}.{name}"

    def at(self, node: Node) -> Spot:
        """Return another piece that stands under the same."""
        return evolve(self, node=node)

    def inner(self) -> Iterator[Spot]:
        """Return the pieces of this one."""
        node = self.node
        under = (*self.under, node) if isinstance(node, (*LOOPS, *FUNCTIONS)) else self.under
        for name, value in ast.iter_fields(node):
            inside = under
            if isinstance(node, ast.If | ast.IfExp) and name == "body":
                inside = (*under, node.test)
            elif isinstance(node, ast.If | ast.IfExp) and name == "orelse":
                inside = (*under, ast.UnaryOp(ast.Not(), node.test, lineno=node.lineno))
            for piece in value if isinstance(value, list) else [value]:
                if isinstance(piece, ast.AST):
                    yield Spot(piece, self.file, inside)


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
        self._keys: Spots = defaultdict(list)  # of calls
        self._bound: Spots = defaultdict(list)  # to `module.name`
        self._uses: defaultdict[str, int] = defaultdict(int)  # of names
        self._defaults: dict[Node, tuple[Node, Node]] = {}  # of parameters, and their functions
        self._real: dict[str, str] = {}  # names of what imports rename
        self._imported: set[str] = set()  # `module.name` of what is an engine's or the job's
        self._foreign: set[str] = set()  # names of what is imported from elsewhere, or defined
        self._changed: dict[str, Place] = {}  # attributes and keys that are assigned
        self._settled: set[Node] = set()  # targets whose value is noted
        self._open: set[Node] = set()  # values that are being looked for
        self._inner: set[Node] = set()  # calls that are arguments of others
        self._depth = 0  # of calls in calls
        self._left = MOST_VALUES
        spots = [Spot(source.tree(), source.name) for source in sources]
        stems = {part for spot in spots for part in PurePosixPath(spot.file).with_suffix("").parts}
        for spot in spots:
            for node in ast.walk(spot.node):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    self._import(spot.at(node), stems)
        while spots:
            spot = spots.pop()
            self._note(spot)
            spots += spot.inner()

    def uses(self, *names: str) -> list[Use]:
        """Return the calls of these names that are made, but for arguments of other calls."""
        spots = [spot for name in names for spot in self._calls.get(name, ())]
        found = [(spot.node, self._use(spot)) for spot in spots]
        return [use for node, use in found if use is not None and node not in self._inner]

    def events(self) -> list[str]:
        """Return the names of all events of dp_accounting that are made."""
        return [name for name in self._calls if name.endswith(EVENT)]

    def keywords(self, key: str) -> list[Value]:
        """Return the value of this keyword of any call."""
        return [self._value(spot, key) for spot in self._keys.get(key, ())]

    def owners(self, method: str) -> list[Value]:
        """Return the objects whose method is called."""
        functions = [spot.at(spot.node.func) for spot in self._calls.get(method, ())]
        owned = [spot for spot in functions if isinstance(spot.node, ast.Attribute)]
        return [self._value(spot.at(spot.node.value), method) for spot in owned]

    def _import(self, spot: Spot, stems: set[str]) -> None:
        """Note names that a file imports: from an engine, from the job, or from elsewhere."""
        module = getattr(spot.node, "module", "") or ""
        for alias in spot.node.names:
            parts = [part for part in f"{module}.{alias.name}".split(".") if part]
            name = alias.asname or parts[-1]
            is_local = getattr(spot.node, "level", 0) or not stems.isdisjoint(parts)
            self.words.setdefault(parts[0], spot.place)
            if not is_local and parts[0] not in PACKAGES:
                self._foreign |= {name, parts[0]} if not module else {name}
                continue
            self._imported |= {spot.key(name), spot.key(module.rpartition(".")[2])}
            if module:
                self._real[name] = alias.name
                owner = ast.Name(module.rpartition(".")[2], ast.Load())
                origin = ast.Attribute(owner, alias.name, ast.Load())
                self._bound[spot.key(name)].append(spot.at(origin))

    def _note(self, spot: Spot) -> None:
        """Note a call, a key, a name, or what is bound to a name."""
        node = spot.node
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name) as target], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name) as target, value=ast.expr() as value)
            ):
                self._bound[spot.key(name)].append(spot.at(value))
                self._settled.add(target)
            case ast.arg(arg=name):
                self._bound[spot.key(name)].append(spot)
            case ast.Name(id=name, ctx=ast.Store()) if node not in self._settled:
                self._bound[spot.key(name)].append(spot)
            case ast.Call(func=function):
                name = self._name(function)
                self._calls[name].append(spot)
                if "seed" in name:
                    owner = self._name(getattr(function, "value", None))
                    self._calls[f"{owner}.{name}"].append(spot)
                self._note_change(spot)
            case ast.keyword(arg=str(name), value=value):
                self._keys[name].append(spot.at(value))
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):
                if self._name(owner) not in ("self", "cls"):
                    self._changed[name] = spot.place
            case ast.Subscript(value=owner, slice=key, ctx=ast.Store() | ast.Del()):
                self._bound[spot.key(self._name(owner))].append(spot)
                self._changed[f"[{getattr(key, 'value', '')}]"] = spot.place
            case ast.ClassDef(name=name):
                self._foreign.add(name)
            case ast.FunctionDef(name=name, args=arguments):
                self._foreign.add(name)
                pairs = zip(arguments.args[::-1], arguments.defaults[::-1], strict=False)
                self._defaults |= {argument: (default, node) for argument, default in pairs}
                for mark in node.decorator_list:
                    self._calls[f"@{self._name(getattr(mark, 'func', mark))}"].append(spot.at(mark))
        if isinstance(node, ast.Name | ast.Attribute):
            self.words.setdefault(self._name(node), spot.place)
            self._uses[self._name(node)] += 1

    def _note_change(self, spot: Spot) -> None:
        """Note what a method changes in a list or table, and an attribute that is set by name."""
        match spot.node:
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=name), _]):
                self._changed[str(name)] = spot.place
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in CHANGING:
                self._bound[spot.key(self._name(owner))].append(spot)
                for keyword in spot.node.keywords:
                    self._changed[f"[{keyword.arg}]"] = spot.place

    def _name(self, node: Node) -> str:
        """Return the last name of an expression, as it was before an import renamed it."""
        name = str(getattr(node, "attr", getattr(node, "id", "")))
        return self._real.get(name, name)

    def _is_engines(self, spot: Spot, function: Node) -> bool:
        """Say whether neither the job nor a package that is no engine defines a function."""
        if isinstance(function, ast.Name):
            key = spot.key(function.id)
            rebound = len(self._bound.get(key, ())) > (key in self._imported)
            return not rebound and function.id not in self._foreign
        first = function
        while isinstance(first, ast.Attribute):
            first = first.value
        return self._foreign.isdisjoint([self._name(function), getattr(first, "id", "")])

    def _use(self, spot: Spot) -> Use | None:
        """Return a call with its arguments by the names of their parameters; None if not made."""
        call = spot.node
        needs = []
        for outer in spot.under:
            if isinstance(outer, FUNCTIONS):
                methods = [argument.arg for argument in outer.args.args[:1]] == ["self"]
                if not (methods or outer.decorator_list or outer.name in self.words):
                    needs.append(f"a call of {outer.name} ({spot.at(outer).place})")
            elif isinstance(outer, ast.expr) and not isinstance(outer, ast.ListComp):
                value = self._value(spot.at(outer), "condition")
                if isinstance(value, Unknown) and "__name__" not in ast.unparse(outer):
                    needs.append(f"the condition at {spot.at(outer).place}")
                elif not value:
                    return None
        function = getattr(call, "func", call)
        name = self._name(function)
        arguments = self._arguments(spot, name)
        for parameter in self._parameters.get(name, ()):
            if parameter in self._changed:
                arguments[parameter] = Unknown(parameter, self._changed[parameter])
        if not self._is_engines(spot, function):
            name = f"{name} of its own"
        repeated = any(isinstance(outer, LOOPS) for outer in spot.under)
        return Use(name, arguments, spot.place, self._given, tuple(needs), repeated)

    def _arguments(self, spot: Spot, name: str) -> dict[str, Value]:
        arguments: dict[str, Value] = {}
        call = spot.node
        self._open.add(call)
        self._depth += 1
        given = getattr(call, "args", [])
        for parameter, argument in zip(self._parameters.get(name, ()), given, strict=False):
            if isinstance(argument, ast.Starred):
                arguments[REST] = Unknown(parameter, spot.place)
                break
            arguments[parameter] = self._value(spot.at(argument), parameter)
        for keyword in getattr(call, "keywords", []):
            value = self._value(spot.at(keyword.value), keyword.arg or REST)
            if keyword.arg is None and isinstance(value, dict):
                arguments |= value
            else:
                arguments[keyword.arg or REST] = value
        self._depth -= 1
        self._open.discard(call)
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
        match node:
            case ast.Name(id=word, ctx=ast.Load()):
                if self._name(node) in self._parameters and self._is_engines(spot, node):
                    return self._use(spot) or NOTHING
                return self._agreed(spot.key(word), name)
            case ast.arg() if node in self._defaults:
                default, function = self._defaults[node]
                calls = [call.node for call in self._calls.get(function.name, ())]
                passed = any(call.args or call.keywords for call in calls)
                hidden = function.decorator_list or function.name.startswith("__")
                if not passed and not hidden and self._uses[function.name] == len(calls):
                    return self._value(spot.at(default), name)
            case ast.Attribute(attr="run_config"):
                return self.config or NOTHING
            case ast.Attribute() if self._name(node) in self._parameters:
                return self._use(spot) or NOTHING
            case ast.Attribute(value=ast.Name(id=owner), attr=word):
                key = spot.key(owner)
                if key in self._imported and len(self._bound.get(key, ())) < 2:
                    return (
                        NOTHING if word in self._changed else self._agreed(f"{owner}.{word}", name)
                    )
            case ast.Subscript(value=table, slice=ast.Constant(value=key)):
                return self._entry(spot.at(table), key, NOTHING, name)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *rest]):
                default = self._value(spot.at(rest[0]), name) if rest else NOTHING
                return self._entry(spot.at(table), ast.literal_eval(key), default, name)
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[inner]):
                number = self._value(spot.at(inner), name)
                return number if kind == "float" or isinstance(number, int) else NOTHING
            case ast.Call(func=function):
                if self._name(function) in self._parameters or self._name(function).endswith(EVENT):
                    if self._depth:
                        self._inner.add(node)
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

    def _agreed(self, key: str, name: str) -> Value:
        """Return the value that all that is bound to a name agrees on, but for what asks for it."""
        spots = [spot for spot in self._bound.get(key, ()) if spot.node not in self._open]
        values = []
        for spot in spots:
            self._open.add(spot.node)
            values.append(self._value(spot, name))
            self._open.discard(spot.node)
        agreed = bool(values) and all(value == values[0] for value in values)
        return values[0] if agreed else NOTHING
