"""Small problems and mechanisms for the tests of the federation."""

import numpy as np

import quietbit
from quietbit.federation.simulate.problem import Score
from quietbit.mechanism.ball import Norm
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import Skellam
from quietbit_lab.experiment.record import Setting
from quietbit_lab.task.dataset import Dataset, Examples, Partition
from quietbit_lab.task.linear import LinearSoftmax


def small_dataset(features=12, classes=3, count=90, seed=0):
    """Three clusters that a linear model can tell apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    centres = rng.standard_normal((classes, features)) * 2
    inputs = (centres[labels] + rng.standard_normal((count, features))).astype(np.float32)
    cut = count * 2 // 3
    return Dataset(
        "clusters",
        classes,
        Examples(inputs[:cut], labels[:cut]),
        Examples(inputs[cut:], labels[cut:]),
    )


def small_problem(samples=1, **given):
    dataset = small_dataset(**given)
    count = dataset.train.count
    split = Partition.one_each(count) if samples == 1 else Partition.groups(count, samples, 0)
    return LinearSoftmax(dataset, split)


def mechanisms(dimension, clip=0.5):
    """One of each kind; widths of one to sixteen bits and floats."""
    ball = quietbit.Ball(Norm.L2, dimension)
    taxi = quietbit.Ball(Norm.L1, dimension)
    design = quietbit.solve(quietbit.DesignSpec(2, 1, 1.0))
    wide = quietbit.solve(quietbit.DesignSpec(8, 3, 5.0))
    return {
        "imvu-1": quietbit.InterpolatedMVU(design, ball),
        "imvu-3": quietbit.InterpolatedMVU(wide, ball, beta=2.0, clamp=True),
        "imvu-l1": quietbit.InterpolatedMVU(design, taxi, beta=8.0),
        "mvu": DitheredMVU(quietbit.solve(quietbit.DesignSpec(9, 1, 2.0)), ball),
        "gaussian": quietbit.Gaussian(ball, 2.0),
        "laplace": Laplace(taxi, 0.5),
        "sign": Sign(quietbit.Gaussian(ball, 2.0)),
        "skellam": Skellam(ball, 2.0, 12),
    }


def setting(**given):
    """Plan and training from one table of names; zero-out unless said."""
    return Setting.from_json({"adjacency": "zero-out", **given})


def chosen(**given):
    """The two parts of a setting."""
    found = setting(**given)
    return found.plan, found.training


class Flat:
    """Clients that pull eight parameters towards 1, each with an update made when it is asked
    for.
    """

    name, dimension = "flat", 8

    def __init__(self, nodes):
        self.sizes = np.ones(nodes, dtype=np.int64)

    def initial(self, seed):
        return np.zeros(self.dimension, dtype=np.float32)

    def updates(self, parameters, clients, plan, out):
        out[:] = 0.3 * np.clip(parameters - 1.0, -1, 1)

    def evaluate(self, parameters):
        return Score(0.0, float(np.square(parameters - 1).mean()))
