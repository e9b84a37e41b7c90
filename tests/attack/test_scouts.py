"""An attack on the clip's path: all that a scout's update does to later clips is the one answer that is priced."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from quietbit import Plan
from quietbit.auditor.tails import clopper_pearson
from quietbit.simulate import Training
from quietbit.simulate.collect import UplinkCollector, make_collector
from unit.simulate.test_moving_clip import Long

TRIALS = 2000
DOUBT = 1e-9


@pytest.mark.parametrize("adjacency", ["replace-one", pytest.param("zero-out", marks=pytest.mark.long)])
def test_a_path_tells_a_scout_s_length_no_better_than_its_price(adjacency: str) -> None:
    """Two clients, of whom one scouts; who watches the next clip reads the answer, and guesses from it alone.

    The attacker's epsilon is log of the ratio of two frequencies, each at the end of an interval that holds with 1e-9:
    a sound answer is found to be above its price once in 5e8 runs, and one that is twice as dear as it says always.
    """
    lengths = {"long": 100.0, "short": 0.01, "zero": 0.0}
    plan = Plan(
        "gaussian", clip=1.0, adjacency=adjacency, epsilon=1.0, releases=1, cohort=2, clip_quantile=0.5, clip_scouts=2
    )

    class Two(Long):
        sizes = np.ones(2, dtype=np.int64)
        length = 0.0

        def updates(self, parameters: Any, clients: Any, plan: Any, out: Any) -> None:
            out[:] = 0
            out[:, 0] = self.length

    problem = Two()
    mechanism = plan.mechanism_for(problem.dimension)
    scouts = plan.scouts(mechanism, 1)
    assert scouts is not None
    collects = make_collector(problem, Training(0.1, 1).local(plan), plan, mechanism, 1, scouts)
    assert isinstance(collects, UplinkCollector)

    def smaller(length: float) -> tuple[float, float]:
        """How often the next clip is smaller, in an interval; it only ever takes two values."""
        problem.length = length
        paths = []
        for _ in range(TRIALS):
            moving = plan.moving_clip()
            assert moving is not None
            evolve(collects, moving=moving).mean(np.zeros(problem.dimension, np.float32), np.arange(2), 0)
            paths.append(moving.clip)
        assert len(set(paths)) == 2
        return clopper_pearson(sum(clip < 1 for clip in paths), TRIALS, DOUBT)

    one, other = smaller(lengths["short"]), smaller(lengths["long" if adjacency == "replace-one" else "zero"])
    shown = max(math.log(one[0] / other[1]), math.log((1 - other[1]) / (1 - one[0])))
    price = scouts.release.pure_epsilon()
    assert scouts.release.epsilon(plan.delta) <= 1.0
    assert shown <= price
    assert shown > 0.5 * price  # the attack works
