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
MOST_CALLS = 50  # of one function that are compared
Scope: TypeAlias = tuple[ast.AST, ...]  # from the module to the innermost function or class
Bound: TypeAlias = tuple[ast.expr | None, Scope]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
ARGUMENTS = ("train_args", "script_args", "task_script_args")  # of a script, in one text
EVENT = "DpEvent"
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
        self._given = given
        self._parameters = {**parameters, "add_argument": ("option",)}
        self._budget = MOST_VALUES
        self._inner: set[ast.AST] = set()  # events inside others
        self._files: dict[ast.AST, Source] = {}
        self._calls: dict[str, list[tuple[ast.Call, Scope]]] = defaultdict(list)
        self._bound: dict[tuple[ast.AST | None, str], list[Bound]] = defaultdict(list)
        self._functions: list[tuple[Any, Scope]] = []
        self._keys: dict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        self._options: dict[str, Value] = {}
        self.words: dict[str, Place] = {}  # every name that is used, where it first stands
        for source in sources:
            tree = source.tree()
            self._files[tree] = source
            self._index(tree)
        self._read_options()

    def uses(self, *names: str) -> list[Use]:
        """Return the calls of these names, but for events that are arguments of other events."""
        found = []
        for name in names:
            for call, scope in self._calls.get(name, ()):
                found.append((call, self._use(name, call, scope)))
        return [use for call, use in found if call not in self._inner]

    def named(self, *names: str) -> Value:
        """Return the one value that the job has under these names; None without, or with several.

        Options of its command lines come first, then its config, keywords of calls, and variables.
        """
        keywords = [value for name in names for value in self.keywords(name)]
        variables = [
            self._agreed(bound, name, 0)
            for (_, name), bound in list(self._bound.items())
            if name in names
        ]
        for function, scope in self._functions:
            for name in set(names) & set(_parameters(function)):
                variables.append(self._parameter(function, name, scope, 0))
        options = [self._options[name] for name in names if name in self._options]
        config = [value for key, value in self.config.items() if key.replace("-", "_") in names]
        for group in (options, config, keywords, variables):
            known = [value for value in group if isinstance(value, int | float)]
            if known:
                return _same(known)
        return None

    def keywords(self, key: str) -> list[Value]:
        """Return the value of this keyword, or of this key of a table, wherever it is written."""
        return [self._value(value, scope, key) for value, scope in self._keys.get(key, ())]

    def _index(self, tree: ast.Module) -> None:
        """Note every call, assignment and name of a file, with the scope that it stands in."""
        waiting: list[tuple[ast.AST, Scope]] = [(tree, (tree,))]
        while waiting:
            node, scope = waiting.pop()
            inner = scope
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    inner = (*scope, node)
                    self._functions.append((node, inner))
                case ast.ClassDef():
                    inner = (*scope, node)
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    self._calls[name].append((node, scope))
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._bind(target, value, scope)
                case ast.AnnAssign(target=target, value=value) if value is not None:
                    self._bind(target, value, scope)
                case ast.AugAssign(target=target) | ast.For(target=target):
                    self._bind(target, None, scope)
                case ast.keyword(arg=str(key), value=value):
                    self._keys[key].append((value, scope))
                case ast.Dict(keys=keys, values=values):
                    for place, value in zip(keys, values, strict=True):
                        if isinstance(place, ast.Constant):
                            self._keys[str(place.value)].append((value, scope))
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                    self.words.setdefault(name, self._place(node, scope))
            for child in ast.iter_child_nodes(node):
                waiting.append((child, inner))

    def _bind(self, target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                self._bound[scope[-1], name].append((value, scope))
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self._bound[_class(scope), name].append((value, scope))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._bind(part, None, scope)

    def _read_options(self) -> None:
        """Note the options of command lines: their defaults, then what the job passes to them."""
        for use in self.uses("add_argument"):
            option = use.arguments.get("option")
            if isinstance(option, str):
                name = option.lstrip("-").replace("-", "_")
                self._options[name] = use.arguments.get("default", Unknown(name, use.place))
        for key in ARGUMENTS:
            for text in self.keywords(key):
                words = str(text).replace("=", " ").split() if isinstance(text, str) else []
                for option, word in pairwise(words):
                    name = option.lstrip("-").replace("-", "_")
                    if option.startswith("--") and name in self._options:
                        self._options[name] = _number(word)

    def _use(self, name: str, call: ast.Call, scope: Scope) -> Use:
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

    def _place(self, node: ast.AST, scope: Scope) -> Place:
        return Place(self._files[scope[0]].name, getattr(node, "lineno", 1))

    def _value(self, node: ast.expr, scope: Scope, name: str, steps: int = 0) -> Value:
        """Return the value of an expression, or an `Unknown` of this name."""
        value = NOTHING
        self._budget -= 1
        if steps <= MOST_STEPS and self._budget > 0:
            value = self._known(node, scope, name, steps + 1)
        return Unknown(name, self._place(node, scope)) if value is NOTHING else value

    def _known(self, node: ast.expr, scope: Scope, name: str, steps: int) -> Value:
        def value(inner: ast.expr) -> Value:
            return self._value(inner, scope, name, steps)

        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [value(part) for part in parts]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                return {str(value(key)): value(item) for key, item in pairs if key is not None}
            case ast.JoinedStr(values=parts):
                return "".join(str(value(part)) for part in parts)
            case ast.FormattedValue(value=inner):
                return value(inner)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return _computed(operator.neg, value(inner))
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATIONS:
                return _computed(OPERATIONS[type(sign)], value(left), value(right))
            case ast.IfExp(body=body, orelse=other):
                return _same([value(body), value(other)], NOTHING)
            case ast.Call(func=ast.Name(id=word), args=[inner]) if word in CASTS:
                return _computed(CASTS[word], value(inner))
            case ast.Call(func=ast.Name(id=word) | ast.Attribute(attr=word)) if word.endswith(
                EVENT
            ):
                self._inner.add(node)
                return self._use(word, node, scope)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *rest]):
                found = _item(value(table), value(key))
                if found is NOTHING and rest and isinstance(value(table), dict):
                    return value(rest[0])
                return found
            case ast.Subscript(value=table, slice=key):
                return _item(value(table), value(key))
            case ast.Attribute(attr="run_config"):
                return self.config or NOTHING
            case ast.Name(id=word):
                return self._variable(word, scope, steps)
            case ast.Attribute(value=ast.Name(id="self"), attr=word):
                return self._agreed(self._bound.get((_class(scope), word), []), word, steps)
            case ast.Attribute(value=ast.Name(id=owner), attr=word):
                for (place, bound_name), bound in self._bound.items():
                    if bound_name == word and getattr(place, "name", "") == owner:
                        return self._agreed(bound, word, steps)
                return self._options.get(word, NOTHING)
        return NOTHING

    def _variable(self, name: str, scope: Scope, steps: int) -> Value:
        """Return the value of a name: assigned in a scope around it, a parameter, or imported."""
        for place in reversed(scope):
            bound = self._bound.get((place, name))
            if bound:
                return self._agreed(bound, name, steps)
            if isinstance(place, FUNCTIONS) and name in _parameters(place):
                return self._parameter(place, name, scope, steps)
        for module in self._files:
            bound = self._bound.get((module, name))
            if bound:
                return self._agreed(bound, name, steps)
        return NOTHING

    def _parameter(self, function: Any, name: str, scope: Scope, steps: int) -> Value:
        """Return what all calls of a function give for a parameter; its default without calls."""
        names = [argument.arg for argument in function.args.args]
        outer = scope[scope.index(function) - 1]
        called = function.name
        if isinstance(outer, ast.ClassDef):
            names = names[1:]
            called = outer.name if called == "__init__" else called
        defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
        for keyword, default in zip(
            function.args.kwonlyargs, function.args.kw_defaults, strict=True
        ):
            if default is not None:
                defaults[keyword.arg] = default
        found = []
        for call, place in self._calls.get(called, ())[:MOST_CALLS]:
            arguments = dict(zip(names, call.args, strict=False))
            arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            argument = arguments.get(name, defaults.get(name))
            if argument is None:
                return NOTHING
            found.append(self._value(argument, place, name, steps))
        if not found and name in defaults:
            found.append(self._value(defaults[name], scope, name, steps))
        return _same(found, NOTHING) if found else NOTHING

    def _agreed(self, bound: Sequence[Bound], name: str, steps: int) -> Value:
        """Return the value that all assignments of a name agree on."""
        values = []
        for expression, scope in bound[:MOST_CALLS]:
            if expression is None:
                return NOTHING
            values.append(self._value(expression, scope, name, steps))
        return _same(values, NOTHING) if values else NOTHING


def _parameters(function: Any) -> list[str]:
    return [argument.arg for argument in function.args.args + function.args.kwonlyargs]


def _class(scope: Scope) -> ast.AST | None:
    """Return the class around a place."""
    classes = [node for node in scope if isinstance(node, ast.ClassDef)]
    return classes[-1] if classes else None


def _computed(function: Callable[..., Any], *values: Value) -> Value:
    """Return a function of plain values, as far as it has one of ordinary size."""
    plain = all(isinstance(value, int | float) and abs(value) < 1e9 for value in values)
    small = plain or (function in CASTS.values() and isinstance(values[0], int | float | str))
    try:
        return function(*values) if small else NOTHING
    except (ArithmeticError, ValueError, TypeError):
        return NOTHING


def _same(values: Sequence[Value], otherwise: Value = None) -> Value:
    """Return the value that all of these are."""
    if values and all(value == values[0] for value in values):
        return values[0]
    return otherwise


def _item(table: Value, key: Value) -> Value:
    if isinstance(table, dict) and isinstance(key, str):
        return table.get(key, NOTHING)
    return NOTHING


def _number(word: str) -> Value:
    """Return a word of a command line as a number, where it is one."""
    try:
        return float(word)
    except ValueError:
        return word
