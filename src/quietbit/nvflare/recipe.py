"""A recipe made private: quietbit's filters around its training tasks, on the server and on sites.

Idea     a job is changed before it is written: two filters on each side, made of the settings. The
         job carries no copy of quietbit; sites use the one that their owners installed. A private
         job may hold parts whose tasks these filters stand around, and no others. It is read where
         NVFlare writes it, so that parts added after `add_privacy` are read as well. A workflow of
         NVFlare is known with the tasks that it sends, or refused; a workflow of one's own is read
         when it sends a task (`PrivateReceiver`). Then quietbit's filters are put where they
         belong: next to the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.app_common.workflows.cross_site_model_eval import CrossSiteModelEval
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather

from quietbit.errors import InvalidParameter, require
from quietbit.federation.plan import Plan
from quietbit.federation.terms import PREFIX
from quietbit.nvflare.client import TABLE, PrivateUplink, local_settings
from quietbit.nvflare.server import PrivateReceiver

__all__ = ["add_privacy"]

Covered = Mapping[str, tuple[str, ...]]  # tasks that filters stand around, by add_privacy's option
OURS = (PrivateReceiver, PrivateUplink)
# What sends beside tasks, by the name of NVFlare's class, which need not be installed.
BESIDE = {
    "AnalyticsReceiver": "shows numbers that clients stream",
    "JobLogReceiver": "shows logs that clients stream",
    "JobLogStreamer": "streams logs to the server",
    "TensorClientStreamer": "streams the app's tensors to the server",
    "TensorServerStreamer": "shows tensors that clients stream",
}
OWN_MODELS = (
    "give CrossSiteModelEval submit_model_task_name='', or use NVFlare's "
    "add_final_global_evaluation in place of add_cross_site_evaluation"
)


def add_privacy(
    recipe: Any,
    settings: Mapping[str, Any],
    *,
    tasks: Sequence[str] = ("train",),
    simulation: bool = False,
    seed: int | None = None,
    metrics: Sequence[str] = (),
    validations: Sequence[str] = (),
    basis: str | None = None,
) -> None:
    """Put quietbit's filters around the training ``tasks`` of a recipe, once.

    ``settings`` are the keys of a run config. ``simulation``, ``seed`` and ``metrics`` are for
    NVFlare's simulator; on a site its owner's policy decides. Where the settings evaluate,
    ``validations`` are the tasks that ask for the metric of a model; without any, every training
    task asks for that of the model it brings, beside the update. ``basis`` is the path of an .npy
    file with the directions of a subspace, on the server. The job carries no copy of quietbit:
    sites use their own.

    Refused, here and when the job is written: a second call, tasks that are not named, and parts
    that send anything else than tasks' results.
    """
    plan = local_settings(settings)
    names = [*tasks, *validations]
    are_names = all(isinstance(name, str) and name and "*" not in name for name in names)
    require(names and are_names, "tasks", names, "names of tasks, without patterns")
    job = recipe._job  # there is no public way to it
    recipe._ensure_client_apps_prepared()
    covered = {"tasks": tuple(tasks), "validations": tuple(validations)}
    _check_unprotected(job)
    _check_parts(job, covered)
    job.job.set_app_packages([*job.job.app_packages, "quietbit"])
    receiver = partial(
        PrivateReceiver, {TABLE: _table(plan)}, validations=list(validations) or None, basis=basis
    )
    uplink = partial(PrivateUplink, simulation, seed, list(metrics) or None)
    recipe.add_server_output_filter(receiver(), tasks=names)
    recipe.add_server_input_filter(receiver(), tasks=names)
    recipe.add_client_input_filter(uplink(), tasks=names)
    recipe.add_client_output_filter(uplink(), tasks=names)
    # Read again when it is written, whatever was added to it since.
    job._set_all_apps = partial(_write, job, job._set_all_apps, covered)


def _table(plan: Plan) -> dict[str, Any]:
    """Return a plan's settings as tables: a dot in a key does not survive a deployment."""
    table: dict[str, Any] = {}
    for key, value in plan.to_run_config().items():
        section, _, name = key.removeprefix(PREFIX).partition(".")
        if name:
            table[section] = {**table.get(section, {}), name: value}
        else:
            table[section] = value
    return table


def _check_unprotected(job: Any) -> None:
    """Refuse a job that has quietbit's filters already."""
    for app in job._deploy_map.values():
        for _, filters in _chains(app.app_config):
            require(
                not any(isinstance(member, OURS) for member in filters),
                "recipe",
                job.name,
                "without quietbit's filters",
                "call add_privacy once, and build a new recipe to change its settings",
            )


def _check_parts(job: Any, covered: Covered) -> None:
    """Refuse workflows, executors and components of a job that filters cannot cover."""
    for target, app in job._deploy_map.items():
        config = app.app_config
        if target == SERVER_SITE_NAME:
            for workflow in config.workflows:
                _check_workflow(workflow.controller, covered)
        else:
            for entry in config.executors:
                _check_executor(entry, covered)
        for component in config.components.values():
            for kind in type(component).__mro__:
                if kind.__name__ in BESIDE and _is_nvflares(kind):
                    reason = f"one that sends tasks alone: it {BESIDE[kind.__name__]}"
                    raise InvalidParameter.of(
                        "component of the job", reason, type(component).__name__, "leave it out"
                    )


def _write(job: Any, write: Callable[[], None], covered: Covered) -> None:
    _check_parts(job, covered)
    for target, app in job._deploy_map.items():
        _place_filters(app.app_config, target)
    write()


def _check_workflow(controller: Any, covered: Covered) -> None:
    """Refuse a workflow of NVFlare that does not average, or sends tasks that are not named."""
    name = type(controller).__name__
    if isinstance(controller, CrossSiteModelEval):
        own = controller._submit_model_task_name
        rule = "none: no site sends its own model"
        require(not own, f"submit_model_task_name of {name}", own, rule, OWN_MODELS)
        _check_sent(name, controller._validation_task_name, "validations", covered)
    elif isinstance(controller, FedAvg):
        _check_sent(name, controller.task_name, "tasks", covered)
        kind = type(controller.aggregator)
        rule = "one that averages: NVFlare's other ones compare single clients"
        require(not _is_nvflares(kind), f"aggregator of {name}", kind.__name__, rule)
    elif isinstance(controller, ScatterAndGather):
        _check_sent(name, controller.train_task_name, "tasks", covered)
    else:
        rule = "FedAvg, ScatterAndGather, CrossSiteModelEval, or your own that averages"
        require(not _is_nvflares(type(controller)), "workflow of the job", name, rule)


def _check_sent(workflow: str, task: str, option: str, covered: Covered) -> None:
    rule = f"named in {option}"
    remedy = f"pass {option}=({task!r},) to add_privacy, or leave the workflow out"
    require(task in covered[option], f"the task of {workflow}", task, rule, remedy)


def _check_executor(entry: Any, covered: Covered) -> None:
    """Refuse an executor whose tasks, all written out, have no filter: it would never run."""
    names = [name for group in covered.values() for name in group]
    rule = f"one of {', '.join(names)}"
    runs = any(name == "*" or name in names for name in entry.tasks)
    subject = f"the task of {type(entry.executor).__name__}"
    require(runs, subject, ", ".join(entry.tasks), rule, "leave the executor out")


def _place_filters(config: Any, target: str) -> None:
    """Put quietbit's filters of an app next to the wire; refuse an app without them."""
    on_server = target == SERVER_SITE_NAME
    counts = {True: 0, False: 0}
    for is_data, filters in _chains(config):
        ours = [member for member in filters if isinstance(member, OURS)]
        others = [member for member in filters if member not in ours]
        leaves = is_data is on_server
        filters[:] = [*others, *ours] if leaves else [*ours, *others]
        counts[is_data] += len(ours)
    require(
        counts == {True: 1, False: 1},
        f"the number of quietbit's filters of {target}",
        sum(counts.values()),
        "2, one for data and one for results",
        "call add_privacy when the job has its apps, and add none of these filters yourself",
    )


def _chains(config: Any) -> Iterator[tuple[bool, list[Any]]]:
    """Return an app's chains of filters, and whether each is for the data of tasks."""
    for _, filters in config.task_data_filters:
        yield True, filters
    for _, filters in config.task_result_filters:
        yield False, filters


def _is_nvflares(kind: type) -> bool:
    return kind.__module__.startswith("nvflare.")
