"""The entry of a run for the public registry of differential privacy deployments, as YAML.

Idea     every field follows from the run's guarantee and settings, or is a line that starts with
         TODO, which only a person can fill in. Epsilon and delta are rounded up. A run without a
         finite epsilon has no entry.
Source   the template of opendp/deployments-registry-data (the registry that OpenDP, Oblivious and
         NIST proposed in 2025), whose field names are used here; NIST SP 800-226 for their meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from quietbit._files import write_whole
from quietbit.errors import QuietbitError, require
from quietbit.privacy.guarantee import rounded_up
from quietbit.target import Adjacency, Trust, Unit
from quietbit_lab.report.page_words import ADJACENCIES, TRUSTS, UNITS, task_words
from quietbit_lab.report.runs import NAMES, PUBLIC, PlacedRun

__all__ = ["SUFFIXES", "registry_entry", "render_entry", "save_entry", "todo_fields"]

Entry: TypeAlias = dict[str, Any]

SUFFIXES = (".yaml", ".yml")
TODO = "TODO"
HEADER = """\
# Entry for the registry of differential privacy deployments, by `quietbit report --registry`.
# Fill in every line that says TODO, then propose the file at opendp/deployments-registry-data.
"""
SOURCES = {
    "vmvu": "The vector mechanism of quietbit: each client sends the seed of a random vector that "
    "points along its clipped, rotated update more often than chance.",
    "imvu": "The interpolated minimum-variance-unbiased mechanism (I-MVU; Guo, Chaudhuri, Stock, "
    "Rabbat, ICML 2023): each coordinate becomes one of a few symbols of a certified table.",
    "gaussian": "The Gaussian mechanism: normal noise, rounded to a public grid.",
}
UNIT_NAMES = {
    Unit.CLIENT: "Client: all data of one client (a device or a person)",
    Unit.SAMPLE: "Sample: one record of a site",
}
MODELS = {
    Trust.LOCAL: "Local",
    Trust.CENTRAL: "Central",
    Trust.SECURE_AGGREGATION: "Federated",
    Trust.SHUFFLED: "Shuffle",
}
ASSUMPTIONS = {
    Trust.LOCAL: "Each client trusts its own device and that device's random numbers. The server, "
    "the network, other clients and everybody who sees the model are not trusted.",
    Trust.CENTRAL: "Clients trust their devices, the network and the server, which sees their "
    "clipped updates and adds the noise. Whoever sees the model is not trusted.",
    Trust.SECURE_AGGREGATION: "Clients trust their devices, the directory of identities, and that "
    "enough other clients of a sum are honest. The server sees sums of masked payloads alone.",
    Trust.SHUFFLED: "Clients trust their devices, and that nobody who sees the result knows which "
    "client made which release.",
}
SERVERS = {
    "active": "A server that departs from the protocol is covered.",
    "honest-but-curious": "The server is trusted to follow the protocol.",
    None: "TODO: whether the server is trusted to follow the protocol",
}
ACTORS = (
    "Clients, who hold the data and randomise their updates; a server, which asks for updates and "
    "averages them; those who use the model."
)
CENTRAL_ACTORS = (
    "Clients, who hold the data and clip their updates; a trusted server, which averages updates "
    "and adds noise; those who use the model."
)
PLANNED = (
    "Sequential composition over all releases of a client, of mechanisms that were fixed before "
    "the first release."
)
ADAPTIVE = (
    "Sequential composition by a privacy filter: the total holds even if the server chooses each "
    "request after it has seen earlier releases. Every node keeps its own ledger and declines "
    "what would exceed its owner's limit."
)
LIFETIME = (
    "Epsilon is an upper bound for this run and its most exposed unit. Other runs on the same data "
    "add to it; each device's ledger has the total."
)
FLOATS = (
    "Floating point: noise is sampled exactly and rounded to a public grid, or the release is a "
    "table of integers whose rounding is part of the account."
)
SIDE_CHANNELS = (
    "Side channels: physical access to devices, caches and power consumption are not considered."
)
VISIBLE = (
    "Which nodes took part and when, the sizes of messages, and the settings of the run are public."
)


def registry_entry(run: PlacedRun) -> Entry:
    """Return the registry's fields of a run; a run without a guarantee is refused."""
    record = run.record
    guarantee = record.get("guarantee") or {}
    epsilon = guarantee.get("epsilon_upper")
    if run.mechanism == PUBLIC or epsilon is None:
        raise QuietbitError(
            f"A run of mechanism {run.mechanism!r} without a finite epsilon has no registry entry: "
            "name a private run."
        )
    return {
        "url_slug": _todo("a short name for the entry's address, such as keyboard-example-2026"),
        "deployment": {
            "basic": _basic(record),
            "dp_variant": _variant(record, guarantee),
            "privacy_loss": _privacy_loss(record, guarantee),
            "deployment_model": _model(record, guarantee),
            "implementation": _implementation(run, guarantee),
            "administrative": {
                "status": "Draft",
                "registry_authors": [_todo("who filled in this entry")],
                "tier": 3,
            },
        },
    }


def render_entry(entry: Entry) -> str:
    """Return an entry as the text of a YAML file."""
    return HEADER + "\n".join(_lines(entry, 0)) + "\n"


def todo_fields(entry: Entry) -> list[str]:
    """Return the fields that a person must fill in or complete, such as deployment.basic.name."""
    fields = []
    for path, value in _leaves(entry, ""):
        if isinstance(value, str) and TODO in value and path not in fields:
            fields.append(path)
    return fields


def save_entry(entry: Entry, path: Path) -> Path:
    """Write an entry to a .yaml file, which appears complete or not at all."""
    require(
        path.suffix.lower() in SUFFIXES,
        "end of the entry's file name",
        path.name,
        " or ".join(SUFFIXES),
    )
    text = render_entry(entry)
    return write_whole(path, lambda file: file.write(text.encode()))


def _todo(what: str) -> str:
    return f"{TODO}: {what}"


def _basic(record: Mapping[str, Any]) -> Entry:
    size = int(record.get("dimension") or 0)
    rounds = int(record.get("rounds") or 0)
    return {
        "name": _todo("the name of the model or product"),
        "data_curators": [
            {
                "data_curator_name": _todo("who publishes the model"),
                "data_curator_type": _todo("Government, Industry or Nonprofit"),
            }
        ],
        "description": _paragraphs(
            f"A model of {size:,} parameters, trained by federated learning in {rounds:,} rounds: "
            f"{task_words(record['task'])}.",
            _todo("what the model does, for whom"),
        ),
        "intended_use": _todo("what the model is used for"),
        "data_product_type": "Machine learning model",
        "data_product_region": _todo("where the data come from, and whose law applies"),
        "data_product_sector": _todo(
            "Technology, Healthcare, Education, Government, Energy or Finance"
        ),
        "publication_date": _todo("when the model was first published, as YYYY-MM-DD"),
    }


def _variant(record: Mapping[str, Any], guarantee: Mapping[str, Any]) -> Entry:
    name = "Approximate DP"
    if guarantee["delta"] == 0:
        name = "Pure DP"
    settings = record["settings"]
    return {
        "variant_name": name,
        "data_domain": _paragraphs(
            "The data that clients hold, seen through their updates: vectors of "
            f"{int(record.get('dimension') or 0):,} numbers, clipped to "
            f"{settings.get('norm', 'l2')} length {settings['clip']:g} before noise is added.",
            _todo("whose data these are, how and when they were collected"),
        ),
        "unprotected_quantities": _paragraphs(
            VISIBLE, _todo("metrics or names that owners let out by their policies, or: none")
        ),
    }


def _privacy_loss(record: Mapping[str, Any], guarantee: Mapping[str, Any]) -> Entry:
    unit = Unit(guarantee["unit"])
    adjacency = Adjacency(guarantee["adjacency"])
    if unit is Unit.CLIENT:
        what = "update"
    else:
        what = "contribution"
    units: int | str = _todo("how many clients or records are protected, about")
    if unit is Unit.CLIENT and record.get("nodes"):
        units = int(record["nodes"])
    details = [str(guarantee["sentence"]), LIFETIME]
    honest = guarantee.get("min_honest_clients")
    if honest:
        details.append(f"It counts on {honest:,} honest clients in every sum.")
    return {
        "privacy_unit": UNIT_NAMES[unit],
        "privacy_unit_details": _paragraphs(
            UNITS[unit], ADJACENCIES[adjacency].format(who=unit.value, what=what)
        ),
        "number_of_privacy_units": units,
        "privacy_parameters": {
            "epsilon": float(rounded_up(guarantee["epsilon_upper"], 4)),
            "delta": float(rounded_up(guarantee["delta"], 6)),
        },
        "privacy_parameters_details": _paragraphs(*details),
    }


def _model(record: Mapping[str, Any], guarantee: Mapping[str, Any]) -> Entry:
    trust = Trust(guarantee["trust"])
    settings = record["settings"]
    assumptions = ASSUMPTIONS[trust]
    if trust is Trust.SECURE_AGGREGATION:
        assumptions = _paragraphs(assumptions, SERVERS[record.get("server")])
    actors = ACTORS
    if trust is Trust.CENTRAL:
        actors = CENTRAL_ACTORS
    return {
        "model_name": MODELS[trust],
        "model_name_details": _paragraphs(
            "Federated learning: data stay with the clients.", TRUSTS[trust]
        ),
        "trust_assumptions": assumptions,
        "actors": _paragraphs(
            actors,
            _todo("who runs the server, who operates the devices, who receives the model"),
        ),
        "release_type": _todo("One release or Many releases (of the model, over time)"),
        "release_type_details": _paragraphs(
            f"{int(record.get('rounds') or 0):,} rounds of up to "
            f"{int(settings.get('cohort') or 0):,} clients.",
            _todo("whether the data are used again, and when the budget is renewed, or: never"),
        ),
        "data_source_type": _todo("Static or Dynamic"),
        "access_type": "Non-interactive",
        "access_type_details": "Nobody queries the data; people use the trained model.",
    }


def _implementation(run: PlacedRun, guarantee: Mapping[str, Any]) -> Entry:
    record = run.record
    composition = PLANNED
    if record.get("mode") == "adaptive":
        composition = ADAPTIVE
    version = (record.get("versions") or {}).get("quietbit")
    library = f"Library: quietbit {version}."
    if version is None:
        library = _todo("the version of quietbit on the nodes")
    source = SOURCES.get(run.mechanism, f"{NAMES.get(run.mechanism, run.mechanism)}.")
    return {
        "preprocessing_and_hyperparameter_tuning": _todo(
            "how clip, learning rate and rounds were chosen; choices made on private data outside "
            "of this run are not in epsilon"
        ),
        "mechanisms": _paragraphs(source, f"As run: {run.label}.", library, FLOATS, SIDE_CHANNELS),
        "composition": composition,
        "post_processing": _paragraphs(
            "The server decodes and averages releases, and steps the model along the mean.",
            _todo("what else is done with the model before it is published"),
        ),
        "justification": _todo("why this epsilon, unit and trust model were chosen, and by whom"),
        "utility": _utility(record),
        "additional_information": _paragraphs(
            *_caveats(record), _todo("a contact, and links to whatever describes the deployment")
        ),
    }


def _utility(record: Mapping[str, Any]) -> str:
    lines = []
    if record["points"]:
        last = record["points"][-1]
        line = f"Accuracy {100 * last['accuracy']:.1f} % after {last['round']:,} rounds"
        if "answers" in last:
            line += (
                f" (95 % interval {100 * last['low']:.1f} to {100 * last['high']:.1f} %, from "
                f"{last['answers']:,} randomised answers)"
            )
        lines.append(f"{line}.")
    groups = record.get("groups") or {"groups": ()}
    for group in groups["groups"]:
        interval = f"{100 * group['low']:.1f} to {100 * group['high']:.1f} %"
        lines.append(f"Accuracy of {group['name']}: 95 % interval {interval}.")
    return _paragraphs(*lines, _todo("what the model is good enough for, by group of people"))


def _caveats(record: Mapping[str, Any]) -> Iterator[str]:
    if "mode" in record:  # an engine's report
        yield _todo("confirm that nodes drew random bits from their operating system, unseeded")
    else:
        yield _todo("run it with real clients before you submit this: it was simulated")
        yield f"Whom the random numbers of the simulation protect: {record.get('protects')}."
    if record["status"] not in ("finished", "target reached"):
        yield f"The run ended early: {record['status']}."


def _paragraphs(*sentences: str) -> str:
    return "\n".join(sentences)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path, value


def _lines(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield the lines of a YAML mapping."""
    indent = "  " * depth
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(inner, depth + 1)
        elif isinstance(inner, list):
            yield f"{indent}{name}:"
            for item in inner:
                if isinstance(item, Mapping):
                    yield f"{indent}  -"
                    yield from _lines(item, depth + 2)
                else:
                    yield f"{indent}  - {_scalar(item)}"
        elif isinstance(inner, str) and "\n" in inner:
            yield f"{indent}{name}: |-"
            for line in inner.split("\n"):
                yield f"{indent}  {line}"
        else:
            yield f"{indent}{name}: {_scalar(inner)}"


def _scalar(value: Any) -> str:
    """Return a YAML scalar: a quoted text, or a number that every YAML reader takes for one."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        digits = repr(value)
        if "e" in digits and "." not in digits:
            digits = digits.replace("e", ".0e")
        return digits
    return str(value)
