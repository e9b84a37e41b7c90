"""What a private job may hold: parts whose tasks quietbit's filters stand around, and no others.

Idea     a job is read where NVFlare writes it, so that parts added after `add_privacy` are read as
         well. A workflow of NVFlare is known with the tasks that it sends, or refused; a workflow
         of one's own is read when it sends a task (`PrivateReceiver`). Then quietbit's filters are
         put where they belong: next to the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.app_common.workflows.cross_site_model_eval import CrossSiteModelEval
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather

from quietbit.errors import InvalidParameter, require
from quietbit.nvflare.client import PrivateUplink
from quietbit.nvflare.server import PrivateReceiver

__all__ = ["Tasks", "check_before_writing", "check_parts", "check_unprotected"]

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


class Tasks(NamedTuple):
    """The tasks that filters stand around: those that ask for an update, and about a model."""

    training: tuple[str, ...]
    validations: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return all of them."""
        return (*self.training, *self.validations)


def check_unprotected(job: Any) -> None:
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


def check_parts(job: Any, tasks: Tasks) -> None:
    """Refuse workflows, executors and components of a job that filters cannot cover."""
    for target, app in job._deploy_map.items():
        config = app.app_config
        if target == SERVER_SITE_NAME:
            for workflow in config.workflows:
                _check_workflow(workflow.controller, tasks)
        else:
            for entry in config.executors:
                _check_executor(entry, tasks)
        for component in config.components.values():
            for kind in type(component).__mro__:
                if kind.__name__ in BESIDE and _is_nvflares(kind):
                    reason = f"one that sends tasks alone: it {BESIDE[kind.__name__]}"
                    raise InvalidParameter.of(
                        "component of the job", reason, type(component).__name__, "leave it out"
                    )


def check_before_writing(job: Any, tasks: Tasks) -> None:
    """Have a job read again when it is written, whatever was added to it since."""
    job._set_all_apps = partial(_write, job, job._set_all_apps, tasks)


def _write(job: Any, write: Callable[[], None], tasks: Tasks) -> None:
    check_parts(job, tasks)
    for target, app in job._deploy_map.items():
        _place_filters(app.app_config, target)
    write()


def _check_workflow(controller: Any, tasks: Tasks) -> None:
    """Refuse a workflow of NVFlare that does not average, or sends tasks that are not named."""
    name = type(controller).__name__
    if isinstance(controller, CrossSiteModelEval):
        own = controller._submit_model_task_name
        rule = "none: no site sends its own model"
        require(not own, f"submit_model_task_name of {name}", own, rule, OWN_MODELS)
        _check_sent(name, controller._validation_task_name, "validations", tasks.validations)
    elif isinstance(controller, FedAvg):
        _check_sent(name, controller.task_name, "tasks", tasks.training)
        kind = type(controller.aggregator)
        rule = "one that averages: NVFlare's other ones compare single clients"
        require(not _is_nvflares(kind), f"aggregator of {name}", kind.__name__, rule)
    elif isinstance(controller, ScatterAndGather):
        _check_sent(name, controller.train_task_name, "tasks", tasks.training)
    else:
        rule = "FedAvg, ScatterAndGather, CrossSiteModelEval, or your own that averages"
        require(not _is_nvflares(type(controller)), "workflow of the job", name, rule)


def _check_sent(workflow: str, task: str, option: str, named: Sequence[str]) -> None:
    rule = f"named in {option}"
    remedy = f"pass {option}=({task!r},) to add_privacy, or leave the workflow out"
    require(task in named, f"the task of {workflow}", task, rule, remedy)


def _check_executor(entry: Any, tasks: Tasks) -> None:
    """Refuse an executor whose tasks, all written out, have no filter: it would never run."""
    rule = f"one of {', '.join(tasks.names)}"
    covered = any(name == "*" or name in tasks.names for name in entry.tasks)
    subject = f"the task of {type(entry.executor).__name__}"
    require(covered, subject, ", ".join(entry.tasks), rule, "leave the executor out")


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
