"""A recipe made private: quietbit's filters around its training tasks, on the server and on sites.

Idea     a job is changed before it is written: two filters on each side, made of the settings. The
         job carries no copy of quietbit; sites use the one that their owners installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from quietbit.errors import require
from quietbit.federation.plan import Plan
from quietbit.federation.terms import PREFIX
from quietbit.nvflare.client import TABLE, PrivateUplink, local_settings
from quietbit.nvflare.job import Tasks, check_before_writing, check_parts, check_unprotected
from quietbit.nvflare.server import PrivateReceiver

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
    that send anything else than tasks' results (`quietbit.nvflare.job`).
    """
    plan = local_settings(settings)
    names = [*tasks, *validations]
    are_names = all(isinstance(name, str) and name and "*" not in name for name in names)
    require(names and are_names, "tasks", names, "names of tasks, without patterns")
    job = recipe._job  # there is no public way to it
    recipe._ensure_client_apps_prepared()
    covered = Tasks(tuple(tasks), tuple(validations))
    check_unprotected(job)
    check_parts(job, covered)
    job.job.set_app_packages([*job.job.app_packages, "quietbit"])
    receiver = partial(
        PrivateReceiver, {TABLE: _table(plan)}, validations=list(validations) or None, basis=basis
    )
    uplink = partial(PrivateUplink, simulation, seed, list(metrics) or None)
    recipe.add_server_output_filter(receiver(), tasks=names)
    recipe.add_server_input_filter(receiver(), tasks=names)
    recipe.add_client_input_filter(uplink(), tasks=names)
    recipe.add_client_output_filter(uplink(), tasks=names)
    check_before_writing(job, covered)


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
