"""The problem, its parameters as Flower's arrays, and who leaves when."""

from functools import lru_cache

import numpy as np
from flwr.app import Array, ArrayRecord

from quietbit.federation.simulate.problem import LocalPlan
from quietbit.mechanism.ball import Norm
from quietbit_lab.task.registry import TaskSpec, build_task

CLASSES, FEATURES, DIMENSION, CLIP = 10, 64, 650, 0.3
# Round, step: partitions that are not there. A request that is LOST never reaches the node; an
# answer that is UNHEARD has left it. Three may be missing from a sum of ten; in round 3 it is four.
LOST = {
    (1, "keys"): (4,),
    (1, "vector"): (0,),
    (1, "unmask"): (9,),
    (2, "shares"): (2,),
    (3, "vector"): (1, 2, 3),
}
UNHEARD = {(2, "vector"): (5, 7), (3, "vector"): (8,), (4, "unmask"): (0, 1, 2)}


@lru_cache(maxsize=1)
def problem():
    return build_task(TaskSpec("digits", samples=143))


def update(parameters, partition):
    """One clipped step on a client's own examples."""
    row = np.zeros((1, DIMENSION), dtype=np.float32)
    problem().updates(parameters, np.array([partition]), LocalPlan(Norm.L2, CLIP), row)
    return row[0].astype(np.float64)


def to_arrays(flat):
    parts = flat[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), flat[CLASSES * FEATURES :]
    return ArrayRecord(
        {name: Array(part) for name, part in zip(("weight", "bias"), parts, strict=True)}
    )


def to_vector(arrays):
    return np.concatenate([arrays[name].numpy().reshape(-1) for name in ("weight", "bias")])
