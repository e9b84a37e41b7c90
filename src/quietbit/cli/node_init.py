"""``quietbit node init``: what the owner of a device decides, written down once."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Annotated, Any

import typer
from attrs import NOTHING, Attribute, fields

from quietbit.cli.console import JsonOption, Row, record
from quietbit.cli.options import PolicyArgument, absolute
from quietbit.node.policy import Policy

__all__ = ["node_init"]

SKIPPED = ("trust", "largest_exposure", "min_neighbours", "seed")  # for those who edit the file
USUAL = {"delta": 1e-5, "mechanisms": "imvu,vmvu", "runs": "*", "metrics": "", "least_epsilon": 0.001, "ledger": None,
         "counter": None}  # fmt: skip


def _rule_options() -> list[inspect.Parameter]:
    """Make an option of every rule of a policy, with the words that the policy's file has on it."""
    found = []
    rules: list[Attribute[Any]] = list(fields(Policy))
    for one in sorted(rules, key=lambda one: one.default is not NOTHING or one.name in USUAL):
        if one.name in SKIPPED:
            continue
        default = USUAL.get(one.name, inspect.Parameter.empty if one.default is NOTHING else one.default)
        default = default.value if isinstance(default, Enum) else default
        kind = next((kind for kind in (int, float) if kind.__name__ in str(one.type)), str)
        note = one.metadata["about"] + (", with commas between" if "tuple" in str(one.type) else "")
        told = typer.Option(help=f"{note[0].upper()}{note[1:]}.")
        shape: Any = Annotated[kind | None if default is None else kind, told]
        found.append(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=shape))
    return found


def node_init(policy: PolicyArgument, json: JsonOption = False, **rules: Any) -> None:
    """Write this node's policy and begin its ledger, once.

    A run can ask for less than the policy allows and never for more. The ledger notes every release before it is made;
    a second file, the counter, is how a ledger that was put back is noticed. Nothing that exists is overwritten. With
    --min-honest-clients masked sums are allowed too.

    Example: quietbit node init /var/lib/quietbit/policy.toml --epsilon 8 --adjacency zero-out --largest-clip 1
    --releases 200 --releases-per-day 20
    """
    from quietbit.node.init import init

    for name in ("mechanisms", "runs", "metrics"):
        rules[name] = tuple(word.strip() for word in rules[name].split(",") if word.strip())
    for name in ("directory", "own_key"):
        rules[name] = str(absolute(rules[name])) if rules[name] is not None else None
    found, place = init(policy, **rules), absolute(policy)
    rows = [
        Row("policy", "policy", str(place)),
        Row("ledger", "ledger", found.ledger),
        Row("counter", "counter", found.counter),
        Row("next", "next", f'name it in the node config: quietbit.policy="{place}"'),
    ]
    record("This node's policy is written, and its ledger begun", rows, json)


# Typer reads the signature: the rules stand where the function has ``**rules``.
_own = list(inspect.signature(node_init, eval_str=True).parameters.values())[:-1]
node_init.__signature__ = inspect.Signature([*_own, *_rule_options()])  # type: ignore[attr-defined]
