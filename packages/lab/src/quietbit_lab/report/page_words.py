"""The words of a report: what each part of a guarantee means, and what each setting is called.

Idea     an epsilon is read together with its unit, its adjacency, its delta and who is trusted, in
         sentences that need no glossary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quietbit.errors import InvalidParameter
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Trust, Unit

__all__ = ["guarantee_template", "setting_words", "spelt_out", "task_words"]

UNITS = {
    Unit.CLIENT: (
        "One client: everything a client contributes over the whole training is protected together."
    ),
    Unit.SAMPLE: (
        "One sample: a single example of a client's data is protected, not all that the client "
        "holds."
    ),
}
ADJACENCIES = {
    Adjacency.ZERO_OUT: (
        "Zero-out: two worlds must look alike that differ in one {who}, whose {what} is the zero "
        "vector in one of them."
    ),
    Adjacency.REPLACE_ONE: (
        "Replace-one: two worlds must look alike that differ in one {who}, whose {what} may be any "
        "other in the same ball."
    ),
}
TRUSTS = {
    Trust.LOCAL: (
        "Local: nobody is trusted. The server, and whoever reads the wire, may see every payload."
    ),
    Trust.CENTRAL: (
        "Central: the server is trusted with every update; what it publishes is covered."
    ),
    Trust.SECURE_AGGREGATION: (
        "Secure aggregation: the server sees the sum of the payloads and no single one."
    ),
    Trust.SHUFFLED: (
        "Shuffled: against whoever sees the result of releases, but not which client made which."
    ),
}
DELTA = (
    "No set of outcomes is more than e^epsilon times as likely in one world as in the other, "
    "plus {delta:g}."
)
PLACE = "{epsilon}"

SETTINGS = {
    "lr": "step size",
    "cohort": "clients per round",
    "clip": "clip",
    "norm": "norm",
    "design_epsilon": "design epsilon",
    "noise_multiplier": "noise",
    "bits": "bits",
    "levels": "levels",
    "beta": "beta",
    "clamp": "clamped",
    "decoder": "decoder",
    "momentum": "momentum",
    "epsilon": "epsilon budget",
    "participation": "participation",
    "local_steps": "local steps",
    "local_rate": "local rate",
    "rng": "random bits",
    "min_honest_clients": "honest clients",
}
SILENT = (
    "seed",
    "rounds",
    "evaluate_at",
    "evaluate_every",
    "mechanism",
    "unit",
    "adjacency",
    "delta",
)
# Settings of some mechanisms, with the values that need not be shown.
OF_IMVU = {"beta": 1.0, "clamp": False, "decoder": "unbiased-at-zero"}
OF_DESIGNS = ("levels",)


def spelt_out(unit: str, adjacency: str, delta: float) -> list[tuple[str, str]]:
    """(term, sentence) pairs for what all epsilons of a comparison share."""
    whose = Unit(unit)
    world = Adjacency(adjacency)
    if whose is Unit.CLIENT:
        what = "update"
    else:
        what = "contribution"
    return [
        ("Whose data (unit)", UNITS[whose]),
        ("Which worlds (adjacency)", ADJACENCIES[world].format(who=whose.value, what=what)),
        (f"Delta = {delta:g}", DELTA.format(delta=delta)),
    ]


def trust_words(trust: str) -> str:
    """Who may look, in a sentence."""
    return TRUSTS[Trust(trust)]


def guarantee_template(unit: str, adjacency: str, trust: str, delta: float) -> str:
    """Return a guarantee's sentence with a place for epsilon, which thousands of runs share."""
    sentence = Guarantee(1.0, delta, Unit(unit), Adjacency(adjacency), Trust(trust)).sentence()
    start = "epsilon <= 1 at "
    if not sentence.startswith(start):
        rule = f"one that begins with {start!r}"
        raise InvalidParameter.of("sentence of a guarantee", rule, sentence)
    return f"epsilon <= {PLACE} at " + sentence.removeprefix(start)


def setting_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that had an effect, by names for people, less those shown elsewhere."""
    mechanism = settings.get("mechanism")
    idle = set(SILENT)
    idle |= {
        name
        for name, usual in OF_IMVU.items()
        if mechanism != "imvu" or settings.get(name) == usual
    }
    idle |= set(OF_DESIGNS) if mechanism not in ("imvu", "mvu") else set()
    idle |= {"local_rate"} if settings.get("local_steps") == 1 else set()
    return {
        SETTINGS.get(name, name.replace("_", " ")): value
        for name, value in settings.items()
        if name not in idle and value is not None
    }


def task_words(task: Mapping[str, Any]) -> str:
    """Describe a task in a few words: data set, model, and what a client is."""
    name = str(task.get("name", "a task"))
    parts = []
    if task.get("model"):
        parts.append(f"{task['model']} model")
    samples = task.get("samples", 1)
    if task.get("clients") == "examples":
        parts.append(
            "every client one example" if samples == 1 else f"every client {samples} examples"
        )
    elif task.get("clients"):
        parts.append(f"clients are {task['clients']}")
    if parts:
        return f"{name} ({', '.join(parts)})"
    return name
