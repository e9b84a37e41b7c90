"""NVFlare 2.9: jobs, and the laws of its filters.

Idea     a filter protects only where NVFlare applies it. Client-controlled workflows (swarm
         learning, cyclic) call the trainer themselves: no result filter of `train` is applied, and
         the update leaves as the data of another task.
Symbols  d: parameters; n = ceil(fraction d) are uploaded; gamma: clip of a coordinate.
Source   nvflare 2.9.0: app_common/filters, app_common/ccwf/client_ctl.py (execute_learn_task),
         swarm_client_ctl.py, apis/impl/task_controller.py (broadcast_and_wait).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import final

from attrs import evolve, frozen
from scipy.special import bdtr

from quietbit.check.attack import refuted_by_signs
from quietbit.check.gaussian import by_formula
from quietbit.check.law import Claim, Reason, Release, Run, Why, law, nothing
from quietbit.check.reader import Source, Sources
from quietbit.check.values import Given, Place, Unknown, Use, Value
from quietbit.errors import require
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency

__all__ = ["applied", "components", "filters", "is_job", "rounds"]

CLIENT = "config_fed_client"
SERVER = "config_fed_server"
# Client-controlled workflows, and the task as whose data the update leaves.
CONTROLLERS = {
    "SwarmClientController": "swarm_report_learn_result",
    "CyclicClientController": "cyclic_learn",
}
CHAINS = {"task_result_filters": "out", "task_data_filters": "in"}  # with the usual direction
NO_FILTER = "no filter"
PARTS = ("components", "workflows", "executors")
# Of workflows that are not told how many.
ROUNDS = {"FedAvg": 5, "ScatterAndGather": 5, "CyclicController": 5, "Scaffold": 5}
PLAIN = (str, int, float, list, dict, type(None))
MOST_PASSES = 64
SHARE = 1e-3  # of delta: for runs of the selection that take more passes than are priced


def is_job(sources: Sources) -> bool:
    """Return whether a job has NVFlare's configurations."""
    return any(True for _ in sources.called(CLIENT))


def components(sources: Sources, given: Given) -> Iterator[Use]:
    """Return every component, executor and workflow of the configurations."""
    for stem in (CLIENT, SERVER):
        for source in sources.called(stem):
            table = source.values()
            entries = [entry for key in PARTS for entry in _tables(table.get(key))]
            if stem == SERVER:  # what a server does to results is nothing that leaves a client
                for chain in (chain for key in CHAINS for chain in _tables(table.get(key))):
                    entries += _tables(chain.get("filters"))
            for entry in entries:
                inner = entry.get("executor")
                yield _use(source, table, inner if isinstance(inner, dict) else entry, given)


def filters(sources: Sources, given: Given) -> Iterator[Use]:
    """Return every filter of what leaves the clients, with the tasks that it stands for."""
    for source in sources.called(CLIENT):
        table = source.values()
        found = False
        for chain, usual in CHAINS.items():
            for entry in _tables(table.get(chain)):
                if entry.get("direction", usual) != "in":
                    tasks = entry.get("tasks")
                    names = tasks if isinstance(tasks, list) else []
                    covers = frozenset(f"{chain} {task}" for task in names)
                    for member in _tables(entry.get("filters")):
                        found = True
                        yield evolve(_use(source, table, member, given), covers=covers)
        if not found:  # another site's configuration may have some
            yield Use(NO_FILTER, {}, Place(source.name), given)


def rounds(parts: Iterable[Use]) -> list[Value]:
    """Return the numbers of rounds of the workflows; exported jobs leave out usual ones."""
    numbers = [use.arguments.get("num_rounds", ROUNDS.get(use.name)) for use in parts]
    return [number for number in numbers if number is not None]


def applied(use: Use, others: Iterable[Use]) -> bool:
    """Return whether NVFlare applies a filter to the update that leaves a client."""
    if not use.covers:  # it was added in Python
        return True
    for other in others:
        for controller, task in CONTROLLERS.items():
            if other.name.endswith(controller):
                return f"task_data_filters {task}" in use.covers
    return any(way.startswith("task_result_filters") for way in use.covers)


def _tables(value: Value) -> list[dict[str, Value]]:
    """Return the tables of a list, and nothing for what is none."""
    entries = value if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def _use(source: Source, table: Value, entry: dict[str, Value], given: Given) -> Use:
    """Return the use of a class; ``{name}`` in an argument is a value of the configuration."""
    path = str(entry.get("path") or entry.get("name") or entry.get("class_path") or "")
    place = source.place_of(path)
    arguments = {}
    given_arguments = entry.get("args")
    if not isinstance(given_arguments, dict):
        given_arguments = {}
    for name, value in given_arguments.items():
        if isinstance(value, str) and "{" in value:
            value = table.get(value.strip("{}"), Unknown(name, place))
        elif not isinstance(value, PLAIN):  # a substitution of HOCON
            value = Unknown(name, place)
        arguments[name] = value
    return Use(path.rpartition(".")[2], arguments, place, given)


@final
@frozen
class SparseVector:
    """Laplace noise on n selected coordinates, and the selection, which tests all d of them.

    A test changes by gamma / scale = epsilon_query / (2 n) between neighbours, and there are at
    most d in a pass. The threshold does not depend on data.
    """

    epsilon_query: float
    epsilon_release: float
    number: int
    dimension: int
    passes: int
    replace: bool
    lost: float

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the selection's and the release's pure cost."""
        selection = self.passes * self.dimension * self.epsilon_query / (2 * self.number)
        return Cost.pure(selection + adjacency.radii * self.epsilon_release / 2)

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return what the signs of the outputs refute, all coordinates at gamma or at 0 (-gamma).

        Draws with replacement leave at least 63 % of n different coordinates; 60 % are counted.
        """
        number = math.floor(self.number * (0.6 if self.replace else 1.0)) * times
        loss = self.epsilon_release / (2 * self.number)
        near = 1 - math.exp(-loss) / 2
        far = 0.5 if adjacency is Adjacency.ZERO_OUT else 1 - near
        return refuted_by_signs(number, near, far, delta)


@law("SVTPrivacy", "fraction epsilon noise_var gamma tau data_kinds replace")
def sparse_vector(use: Use, run: Run) -> list[Release]:
    """Price the selection and the noisy values of `SVTPrivacy`, which its epsilon does not."""
    number = run.number("dimension", None, use.place)
    epsilon = use.number("epsilon", 0.1)
    gamma = use.number("gamma", 1e-5)
    uploaded = max(1, math.ceil(min(1.0, use.number("fraction", 0.1)) * number))
    threshold = epsilon / (1 + (2 * uploaded) ** (2 / 3))
    if use.value("epsilon_threshold", None) is not None:
        threshold = use.number("epsilon_threshold")
    elif use.value("epsilon_query", None) is not None:
        threshold = epsilon - use.number("epsilon_query")
    query = epsilon - threshold
    spent = use.value("epsilon_release", None)
    released = float(spent) if spent is not None else uploaded * use.number("noise_var", 0.1)
    require(min(query, threshold, released, gamma) > 0, "epsilon of SVTPrivacy", epsilon, "split")
    share = run.delta * SHARE / run.rounds
    # The noisy threshold is above this with a probability of share / 2.
    highest = use.number("tau", 1e-6) + gamma / threshold * math.log(1 / share)
    accepted = math.exp(-highest * query / (2 * gamma * uploaded)) / 2
    passes = 1
    while passes < MOST_PASSES:
        if bdtr(uploaded - 1, number, 1 - (1 - accepted) ** passes) <= share / 2:
            break
        passes += 1
    noise = SparseVector(
        query, released, uploaded, number, passes, bool(use.value("replace", True)), share
    )
    detail = f"{uploaded:,} coordinates, {released:,.6g} in all per round"
    why = (Why(Reason.SELECTION, use.place, detail), Why(Reason.PER_ROUND, use.place))
    claim = Claim(epsilon, run.delta)
    needs = ("arrays of at least one dimension", "a public number of local steps")
    return [
        Release("update", use.name, use.place, noise, run.rounds, claim=claim, why=why, needs=needs)
    ]


@law("LocalDifferentialPrivacy", "clipping_norm sensitivity epsilon delta off")
def local_differential_privacy(use: Use, run: Run) -> list[Release]:
    """Price FLIP's filter: Flower's mod for NVFlare, with a switch and defaults of its own."""
    usual = {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5}
    if use.value("off", False):
        return [nothing("update", use, Reason.SWITCHED_OFF)]
    return [by_formula(evolve(use, arguments={**usual, **use.arguments}), run)]


@law("PercentilePrivacy", "percentile gamma data_kinds")
def percentile(use: Use, run: Run) -> list[Release]:
    """Say that truncation and a cut-off at gamma are no noise."""
    return [nothing("update", use, Reason.NO_NOISE)]


# Classes that add no noise to what they let out.
_UNPROTECTED = {
    ("update", (Reason.NO_CLIP, Reason.NO_NOISE)): (NO_FILTER, "ExcludeVars", "ConvertWeights"),
    ("update", (Reason.ENCRYPTED, Reason.NO_CLIP, Reason.NO_NOISE)): (
        "HEModelEncryptor",
        "HEModelSerializeFilter",
        "FedAvgRecipeWithHE",
    ),
    ("statistics", (Reason.NO_CLIP, Reason.NO_NOISE)): (
        "StatisticsExecutor",
        "StatisticsPrivacyFilter",
        "FedStatsRecipe",
    ),
    ("statistics", (Reason.NO_CLIP,)): ("AddNoiseToMinMax",),
    ("statistics", (Reason.NO_NOISE,)): ("MinCountCleanser", "HistogramBinsCleanser"),
    ("metrics", (Reason.IN_CLEAR,)): (
        "MetricRelay",
        "ConvertToFedEvent",
        "AnalyticsSender",
        "SummaryWriter",
        "MLflowWriter",
        "WandBWriter",
    ),
    ("model", (Reason.IN_CLEAR,)): ("CrossSiteModelEval", "CrossSiteEvalServerController"),
}


def _unprotected(use: Use, run: Run) -> list[Release]:
    """Say what leaves as it is, and why nothing is proved of it."""
    for (what, reasons), names in _UNPROTECTED.items():
        if use.name in names:
            return [nothing(what, use, *reasons)]
    return []


for _name in (name for names in _UNPROTECTED.values() for name in names):
    law(_name)(_unprotected)
