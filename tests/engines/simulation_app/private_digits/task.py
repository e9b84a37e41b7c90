"""The problem of the app, and its parameters as Flower's arrays."""

from functools import lru_cache

import numpy as np
from flwr.app import Array, ArrayRecord

from quietbit_lab.task.registry import TaskSpec, build_task

CLASSES, FEATURES = 10, 64


@lru_cache(maxsize=1)
def problem(samples):
    return build_task(TaskSpec("digits", samples=samples))


def to_arrays(flat):
    parts = flat[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), flat[CLASSES * FEATURES :]
    return ArrayRecord(
        {name: Array(part) for name, part in zip(("weight", "bias"), parts, strict=True)}
    )


def to_vector(arrays):
    return np.concatenate([arrays[name].numpy().reshape(-1) for name in ("weight", "bias")])
