"""Calls of a job's Python with the values of their arguments, read from its syntax.

Idea     nothing is run: a name has the value that all of its assignments agree on, a parameter the
         value that all calls of its function give it, an option of the command line its default or
         what the job's own `train_args` say, `context.run_config` is the app's table. Everything
         else is computed when the job runs, and stays `Unknown`.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, final

from quietbit.check.reader import Source
from quietbit.check.values import REST, Given, Place, Unknown, Use, Value

__all__ = ["Program"]

MOST_STEPS = 30  # from a value to what it is computed from
MOST_VALUES = 200_000  # that are looked at in a job
MOST_PLACES = 50  # of one name that are compared
EVENT = "DpEvent"
Node: TypeAlias = Any  # of the syntax
Scope: TypeAlias = tuple[Node, ...]  # from the module to the innermost function or class
OPERATIONS: dict[Any, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
CASTS: dict[str, Callable[..., Any]] = {"int": int, "float": float}
NOTHING = object()


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
        self._parameters = {**parameters, "add_argument": ("option",)}
        self._files: dict[Node, str] = {}
        self._budget = MOST_VALUES
        self._inner: set[Node] = set()  # events inside others
        self._options: dict[str, Value] = {}
        # Calls, keys and functions by name, and what is assigned to names of a scope.
        self._found: dict[tuple[Node, str], list[tuple[Node, Scope]]] = defaultdict(list)
        for source in sources:
            tree = source.tree()
            self._files[tree] = source.name
            self._index(tree)
        self._read_options()

    def uses(self, *names: str) -> list[Use]:
        """Return the calls of these names, but for events that are arguments of other events."""
        found = []
        for name in names:
            for call, scope in self._found.get(("call", name), ()):
                found.append((call, self._use(name, call, scope)))
        return [use for call, use in found if call not in self._inner]

    def keywords(self, key: str) -> list[Value]:
        """Return the value of this keyword, or of this key of a table, wherever it is written."""
        return [self._value(node, scope, key) for node, scope in self._found.get(("key", key), ())]

    def named(self, *names: str) -> Value:
        """Return the one number that the job has under these names; None without, or with several.

        Options of its command lines come first, then its config, keywords, and variables.
        """
        variables = []
        for (owner, name), places in list(self._found.items()):
            if name in names and owner == "parameter":
                variables += [self._parameter(node, name, scope, 0) for node, scope in places]
            elif name in names and not isinstance(owner, str):
                variables.append(self._agreed(owner, name, 0))
        groups = (
            [self._options.get(name) for name in names],
            [self.config.get(name.replace("_", "-")) for name in names],
            [value for name in names for value in self.keywords(name)],
            variables,
        )
        for group in groups:
            known = {value for value in group if isinstance(value, int | float)}
            if known:
                return known.pop() if len(known) == 1 else None
        return None

    def _index(self, tree: ast.Module) -> None:
        """Note every call, key, assignment and name of a file, with the scope that it stands in."""
        waiting: list[tuple[Node, Scope]] = [(tree, (tree,))]
        while waiting:
            node, scope = waiting.pop()
            if isinstance(node, ast.Call):
                self._found["call", _name(node.func)].append((node, scope))
            elif isinstance(node, ast.keyword):
                self._found["key", str(node.arg)].append((node.value, scope))
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    self._found["key", getattr(key, "value", "")].append((value, scope))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value, scope)
            elif isinstance(node, ast.AnnAssign):
                self._bind(node.target, node.value, scope)
            elif isinstance(node, ast.AugAssign | ast.For):
                self._bind(node.target, None, scope)
            elif isinstance(node, ast.Name | ast.Attribute | ast.alias):
                self.words.setdefault(_name(node), self._place(node, scope))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                scope = (*scope, node)
                self._found["class", node.name].append((node, scope))
                for name in _parameters(node):
                    self._found["parameter", name].append((node, scope))
            waiting += [(child, scope) for child in ast.iter_child_nodes(node)]

    def _bind(self, target: Node, value: Node, scope: Scope) -> None:
        """Note an assignment; what is unpacked, or changes in a loop, is bound to None."""
        if isinstance(target, ast.Name):
            self._found[scope[-1], target.id].append((value, scope))
        elif isinstance(target, ast.Attribute):
            self._found[_class(scope), target.attr].append((value, scope))
        for part in getattr(target, "elts", ()):
            self._bind(part, None, scope)

    def _read_options(self) -> None:
        """Note the options of command lines: their defaults, then what the job passes to them."""
        for use in self.uses("add_argument"):
            name = str(use.arguments.get("option")).lstrip("-").replace("-", "_")
            self._options[name] = use.arguments.get("default", Unknown(name, use.place))
        for text in self.keywords("train_args") + self.keywords("script_args"):
            for option, word in pairwise(str(text).replace("=", " ").split()):
                name = option.lstrip("-").replace("-", "_")
                if option.startswith("--") and name in self._options:
                    number = word.replace(".", "", 1).isdigit()
                    self._options[name] = float(word) if number else word

    def _use(self, name: str, call: Node, scope: Scope) -> Use:
        """Return a call with its arguments by the names of their parameters."""
        arguments: dict[str, Value] = {}
        for parameter, argument in zip(self._parameters.get(name, ()), call.args, strict=False):
            arguments[parameter] = self._value(argument, scope, parameter)
        for keyword in call.keywords:
            key = keyword.arg or REST
            arguments[key] = self._value(keyword.value, scope, key)
        if isinstance(arguments.get(REST), dict):
            arguments |= arguments.pop(REST)
        return Use(name, arguments, self._place(call, scope), self._given)

    def _place(self, node: Node, scope: Scope) -> Place:
        return Place(self._files[scope[0]], getattr(node, "lineno", 1))

    def _value(self, node: Node, scope: Scope, name: str, steps: int = 0) -> Value:
        """Return the value of an expression, or an `Unknown` of this name."""
        value = NOTHING
        self._budget -= 1
        if node is not None and steps < MOST_STEPS and self._budget > 0:
            value = self._known(node, scope, name, steps + 1)
        return Unknown(name, self._place(node, scope)) if value is NOTHING else value

    def _known(self, node: Node, scope: Scope, name: str, steps: int) -> Value:
        def value(inner: Node) -> Value:
            return self._value(inner, scope, name, steps)

        match node:
            case ast.Name(id=word):
                return self._variable(word, scope, steps)
            case ast.Attribute(attr="run_config"):
                return self.config or NOTHING
            case ast.Attribute(value=ast.Name(id=owner), attr=word):
                place = _class(scope)
                if owner != "self":
                    place = self._found.get(("class", owner), [(None, ())])[0][0]
                found = self._agreed(place, word, steps)
                return self._options.get(word, NOTHING) if found is NOTHING else found
            case ast.Subscript(value=table, slice=key):
                return _item(value(table), value(key), NOTHING)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *rest]):
                return _item(value(table), value(key), value(rest[0]) if rest else NOTHING)
            case ast.Call(func=ast.Name(id=word), args=[inner]) if word in CASTS:
                return _computed(CASTS[word], value(inner))
            case ast.Call(func=function) if _name(function).endswith(EVENT):
                self._inner.add(node)
                return self._use(_name(function), node, scope)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATIONS:
                return _computed(OPERATIONS[type(sign)], value(left), value(right))
            case ast.JoinedStr(values=parts):
                return "".join(map(str, map(value, parts)))
            case ast.FormattedValue(value=inner):
                return value(inner)
        return _literal(node)

    def _variable(self, name: str, scope: Scope, steps: int) -> Value:
        """Return the value of a name: assigned in a scope around it, a parameter, or imported."""
        for place in (*reversed(scope), *self._files):
            if (place, name) in self._found:
                return self._agreed(place, name, steps)
            if name in _parameters(place):
                return self._parameter(place, name, scope, steps)
        return NOTHING

    def _parameter(self, function: Node, name: str, scope: Scope, steps: int) -> Value:
        """Return what all calls of a function give for a parameter; its default without calls."""
        names = _parameters(function)
        defaults = dict(zip(names[::-1], function.args.defaults[::-1], strict=False))
        called = function.name
        outer = scope[scope.index(function) - 1]
        if isinstance(outer, ast.ClassDef):
            names = names[1:]
            called = outer.name if called == "__init__" else called
        places = []
        for call, place in self._found.get(("call", called), ())[:MOST_PLACES]:
            given = dict(zip(names, call.args, strict=False))
            given |= {str(keyword.arg): keyword.value for keyword in call.keywords}
            places.append((given.get(name, defaults.get(name)), place))
        return self._same(places or [(defaults.get(name), scope)], name, steps)

    def _agreed(self, place: Node, name: str, steps: int) -> Value:
        """Return the value that all assignments of a name agree on."""
        return self._same(self._found.get((place, name), [])[:MOST_PLACES], name, steps)

    def _same(self, places: Sequence[tuple[Node, Scope]], name: str, steps: int) -> Value:
        if not places or any(node is None for node, _ in places):
            return NOTHING
        values = [self._value(node, scope, name, steps) for node, scope in places]
        return values[0] if all(value == values[0] for value in values) else NOTHING


def _name(node: Node) -> str:
    """Return the last name of an expression or import; empty for others."""
    for key in ("attr", "id", "name"):
        if hasattr(node, key):
            return str(getattr(node, key))
    return ""


def _parameters(function: Node) -> list[str]:
    arguments = getattr(function, "args", None)
    return [argument.arg for argument in getattr(arguments, "args", ())]


def _class(scope: Scope) -> Node:
    """Return the class around a place."""
    classes = [node for node in scope if isinstance(node, ast.ClassDef)]
    return classes[-1] if classes else None


def _literal(node: Node) -> Value:
    """Return the value of a literal."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return NOTHING


def _computed(function: Callable[..., Any], *values: Value) -> Value:
    """Return a function of numbers of ordinary size."""
    if not all(isinstance(value, int | float) and abs(value) < 1e9 for value in values):
        return NOTHING
    try:
        return function(*values)
    except (ArithmeticError, ValueError):
        return NOTHING


def _item(table: Value, key: Value, default: Value) -> Value:
    if isinstance(table, dict) and isinstance(key, str):
        return table.get(key, default)
    return NOTHING
