"""One call that makes a job private: both filters, at both ends, for its training task.

Idea     NVFlare looks filters up by the exact name of a task (a pattern matches nothing) and keeps data and results
         apart, so that registering by hand can leave a way open. This registers all four. Tasks that are not named are
         not run on the clients: there is nothing that they could answer. The job carries no copy of quietbit, as
         it would of any other package: sites use the one that they have installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from quietbit.errors import require
from quietbit.nvflare.client import TABLE, PrivateUplink, local_settings
from quietbit.nvflare.server import PrivateReceiver
from quietbit.plan.plan import PREFIX

__all__ = ["add_privacy"]


def add_privacy(
    recipe: Any,
    settings: Mapping[str, Any],
    *,
    tasks: Sequence[str] = ("train",),
    simulation: bool = False,
    seed: int | None = None,
    metrics: Sequence[str] = (),
    validations: Sequence[str] = (),
) -> None:
    """Put quietbit's filters around the training ``tasks`` of a recipe; ``settings`` are the keys of a run config.

    ``simulation``, ``seed`` and ``metrics`` are for NVFlare's simulator; on a site its owner's policy decides. Where
    the settings evaluate, ``validations`` are the tasks that ask for the metric of a model; without any, every training
    task asks for that of the model it brings, beside the update.
    """
    known = local_settings(settings)
    names = [*tasks, *validations]
    fine = bool(names) and all(isinstance(name, str) and name and "*" not in name for name in names)
    require(fine, "tasks", names, "names of tasks, without patterns")
    job = recipe._job.job  # there is no public way to it
    job.set_app_packages([*job.app_packages, "quietbit"])
    table: dict[str, Any] = {}
    for key, value in known.to_run_config().items():  # a dot in a key does not survive a deployment
        outer, _, inner = key.removeprefix(PREFIX).partition(".")
        table |= {outer: table.get(outer, {}) | {inner: value}} if inner else {outer: value}
    receiver = partial(PrivateReceiver, {TABLE: table}, validations=list(validations) or None)
    numbers = list(metrics) or None
    recipe.add_server_output_filter(receiver(), tasks=names)
    recipe.add_server_input_filter(receiver(), tasks=names)
    recipe.add_client_input_filter(PrivateUplink(simulation, seed, numbers), tasks=names)
    recipe.add_client_output_filter(PrivateUplink(simulation, seed, numbers), tasks=names)
