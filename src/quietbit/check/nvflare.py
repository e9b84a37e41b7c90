"""NVFlare 2.9: jobs, and the laws of its filters.

Idea     a filter protects only where NVFlare applies it. Tasks of filters are exact names: a
         pattern such as `*` matches nothing there, though it does for executors. Client-controlled
         workflows (swarm learning, cyclic) call the trainer themselves: no result filter of `train`
         is applied, and the update leaves as the data of another client's task. `LocalPrivacy`
         stands around the executors, and holds there, too.
Symbols  d: parameters; n = ceil(fraction d) are uploaded; gamma: clip of a coordinate.
Source   nvflare 2.9.0: app_common/filters, private/fed/utils/fed_utils.py (filter names),
         app_common/ccwf/client_ctl.py (execute_learn_task), swarm_client_ctl.py,
         apis/impl/task_controller.py (broadcast_and_wait).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import final

from attrs import evolve, frozen

from quietbit.check.attack import refuted_by_signs
from quietbit.check.gaussian import by_formula
from quietbit.check.law import (
    NUMPY_SEEDS,
    Claim,
    Reason,
    Release,
    Run,
    law,
    nothing,
    seeded,
)
from quietbit.check.reader import Source, Sources
from quietbit.check.values import PACKAGES, Given, Place, Unknown, Use, Value
from quietbit.errors import require
from quietbit.target import Adjacency

__all__ = ["FILTERS", "components", "filters", "rounds"]

CLIENT = "config_fed_client"
SERVER = "config_fed_server"
# Client-controlled workflows, and the task as whose data the update leaves.
CONTROLLERS = {
    "SwarmClientController": "swarm_report_learn_result",
    "CyclicClientController": "cyclic_learn",
}
RESULTS = "task_result_filters"
DATA = "task_data_filters"
DIRECTIONS = {RESULTS: "out", DATA: "in"}  # where a chain names none
TASK_NAMES = ("train_task_name", "task_name", "learn_task_name")  # arguments of workflows
TASK = "train"  # their usual value
NO_FILTER = "no filter"
AROUND = "LocalPrivacy"
PARTS = ("components", "workflows", "executors")
# Of workflows that are not told how many.
ROUNDS = {"FedAvg": 5, "ScatterAndGather": 5, "CyclicController": 5, "Scaffold": 5}
# Of workflows that train nobody.
IDLE = (
    "CrossSiteModelEval",
    "CrossSiteEvalServerController",
    "GlobalModelEval",
    "InitializeGlobalWeights",
    "StatisticsController",
)
FILTERS = (AROUND, "LocalDifferentialPrivacy", "PrivateUplink", "SVTPrivacy")
PLAIN = (str, int, float, list, dict, type(None))


def components(sources: Sources, given: Given) -> Iterator[Use]:
    """Return every component, executor and workflow, and the filters of the server."""
    for stem in (CLIENT, SERVER):
        for source in sources.called(stem):
            table = source.values()
            entries = [entry for key in PARTS for entry in _tables(table.get(key))]
            if stem == SERVER:  # what a server does to results is nothing that leaves a client
                entries += [member for _, _, member in _members(table)]
            for entry in entries:
                inner = entry.get("executor")
                yield _use(source, table, inner if isinstance(inner, dict) else entry, given)


def filters(sources: Sources, given: Given, parts: Sequence[Use]) -> Iterator[Use]:
    """Return the filters of every site for every task that trains, and whether they are applied."""
    swarm = {CONTROLLERS[use.name] for use in parts if use.name in CONTROLLERS}
    own = [flow.name for flow in _workflows(sources, given) if "." in flow.name]
    needs = tuple(f"no other task of {name} that trains" for name in own)
    for source in sources.called(CLIENT):
        table = source.values()
        listed = list(_members(table))
        for task in _trained(parts):
            bare = Use(
                NO_FILTER, {}, Place(source.name), given, needs, chain=f"{source.name} {task}"
            )
            for key, chain, member in listed:
                use = _use(source, table, member, given)
                names = chain.get("tasks")
                tasks = {str(name) for name in names} if isinstance(names, list) else set()
                met = key == RESULTS and task in tasks
                if swarm and use.name != AROUND:
                    met = key == DATA and swarm <= tasks
                leaves = str(chain.get("direction", DIRECTIONS[key])).lower() != "in"
                yield evolve(use, needs=needs, chain=bare.chain, applied=met and leaves)
            if not listed:
                yield bare


def _trained(parts: Sequence[Use]) -> set[str]:
    """Return the names of the tasks that train."""
    trained = set()
    for use in parts:
        named = {str(use.arguments[name]) for name in TASK_NAMES if name in use.arguments}
        if use.name in ROUNDS and not named:
            named = {TASK}
        trained |= named
    return trained or {TASK}


def _members(table: dict[str, Value]) -> Iterator[tuple[str, dict[str, Value], dict[str, Value]]]:
    """Return the filters of a configuration, with the list and the chain that they stand in."""
    for key in DIRECTIONS:
        for chain in _tables(table.get(key)):
            for member in _tables(chain.get("filters")):
                yield key, chain, member


def _workflows(sources: Sources, given: Given) -> Iterator[Use]:
    for source in sources.called(SERVER):
        table = source.values()
        for entry in _tables(table.get("workflows")):
            yield _use(source, table, entry, given)


def rounds(sources: Sources, given: Given) -> Iterator[Value]:
    """Return the numbers of rounds of the workflows; exported jobs leave out usual ones."""
    for use in _workflows(sources, given):
        if use.name not in IDLE:
            usual = ROUNDS.get(use.name, Unknown("rounds", use.place))
            yield use.arguments.get("num_rounds", usual)


def _tables(value: Value) -> list[dict[str, Value]]:
    """Return the tables of a list, and nothing for what is none."""
    entries = value if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def _use(source: Source, table: Value, entry: dict[str, Value], given: Given) -> Use:
    """Return the use of a class; ``{name}`` in an argument is a value of the configuration."""
    path = str(entry.get("path") or entry.get("class_path") or entry.get("name") or "")
    place = source.place_of(path)
    arguments = {}
    named = entry.get("args")
    for name, value in (named if isinstance(named, dict) else {}).items():
        if isinstance(value, str) and "{" in value:
            value = table.get(value.strip("{}"), Unknown(name, place))
        elif not isinstance(value, PLAIN):  # a substitution of HOCON
            value = Unknown(name, place)
        arguments[name] = value
    package, _, name = path.rpartition(".")
    is_known = package.partition(".")[0] in ("", *PACKAGES)
    return Use(name if is_known else path, arguments, place, given)


@final
@frozen
class SparseVector:
    """Laplace noise on n selected coordinates; no bound is known for how they are selected."""

    epsilon: float  # of all values together, for replace-one
    number: int

    def proven(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return infinity: the selection tests until it has n, and every test costs."""
        return math.inf

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return what the signs of the outputs refute, all coordinates at gamma or at 0 (-gamma).

        Draws with replacement leave at least 63 % of n different coordinates; 60 % are counted.
        """
        near = 1 - math.exp(-self.epsilon / (2 * self.number)) / 2
        far = 0.5 if adjacency is Adjacency.ZERO_OUT else 1 - near
        return refuted_by_signs(math.floor(0.6 * self.number) * times, near, far, delta)


@law("SVTPrivacy", "fraction epsilon noise_var gamma tau data_kinds replace")
def sparse_vector(use: Use, run: Run) -> list[Release]:
    """Say what the values of `SVTPrivacy` cost, which its epsilon does not count."""
    dimension = float(run.given.find("dimension") or 1)  # one value is selected at least
    epsilon = use.number("epsilon", 0.1)
    number = max(1, math.ceil(min(1.0, use.number("fraction", 0.1)) * dimension))
    released = number * use.number("noise_var", 0.1)
    if use.value("epsilon_release", None) is not None:
        released = use.number("epsilon_release")
    require(released > 0, f"noise_var ({use.place})", released, "above 0")
    detail = f"{number:,} values cost {released:,.6g} in a round, and the selection more"
    if dimension == 1:
        detail = "--dimension says what they cost"
    noise = SparseVector(released, number)
    claim = Claim(epsilon, run.delta)
    release = Release("update", use.name, use.place, noise, run.rounds, claim=claim)
    release = release.because(Reason.SELECTION, detail).because(Reason.PER_ROUND)
    return [release, nothing(use, Reason.IN_CLEAR, what="metrics")]


@law("LocalDifferentialPrivacy", "clipping_norm sensitivity epsilon delta off")
def local_differential_privacy(use: Use, run: Run) -> list[Release]:
    """Price FLIP's filter: Flower's mod for NVFlare, with a switch and defaults of its own."""
    usual = {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5}
    if use.value("off", False):
        return [nothing(use, Reason.SWITCHED_OFF)]
    release = by_formula(evolve(use, arguments={**usual, **use.arguments}), run)
    found = seeded(use, run, *NUMPY_SEEDS) or [release]
    return [*found, nothing(use, Reason.IN_CLEAR, what="metrics")]


# Classes that add no noise to what they let out.
_UNPROTECTED = {
    ("update", (Reason.NO_NOISE,)): "PercentilePrivacy",
    ("update", (Reason.NO_CLIP, Reason.NO_NOISE)): f"{NO_FILTER},ExcludeVars,ConvertWeights",
    ("update", (Reason.ENCRYPTED, Reason.NO_CLIP, Reason.NO_NOISE)): (
        "HEModelEncryptor,HEModelSerializeFilter,FedAvgRecipeWithHE"
    ),
    ("statistics", (Reason.NO_CLIP, Reason.NO_NOISE)): (
        "StatisticsExecutor,StatisticsPrivacyFilter,FedStatsRecipe"
    ),
    ("statistics", (Reason.NO_CLIP,)): "AddNoiseToMinMax",
    ("statistics", (Reason.NO_NOISE,)): "MinCountCleanser,HistogramBinsCleanser",
    ("metrics", (Reason.IN_CLEAR,)): (
        "MetricRelay,ConvertToFedEvent,AnalyticsSender,SummaryWriter,MLflowWriter,WandBWriter"
    ),
    (
        "model",
        (Reason.IN_CLEAR,),
    ): "CrossSiteModelEval,CrossSiteEvalServerController,CrossSiteEvalClientController",
}


def _unprotected(use: Use, run: Run) -> list[Release]:
    """Say what leaves as it is, and why nothing is proved of it."""
    for (what, reasons), names in _UNPROTECTED.items():
        if use.name in names.split(","):
            return [evolve(nothing(use, *reasons, what=what), times=run.known_rounds or 1)]
    return []


for _names in _UNPROTECTED.values():
    for _name in _names.split(","):
        law(_name)(_unprotected)
