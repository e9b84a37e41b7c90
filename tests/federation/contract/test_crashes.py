"""A run whose apps all crash ends after the second round, with a sentence that says so."""

import pytest

from plans import engine_plan
from quietbit.federation.record import RoundReport
from quietbit.federation.server import Run


def entry(number, answered, crashed, scouted=0):
    counts = (answered, answered, 0, 0, 0)
    return RoundReport(number, *counts, False, 0, 0, 0, (), crashed=crashed, scouted=scouted)


@pytest.mark.parametrize(
    ("rounds", "ends"),
    [
        ([(3, 3)], False),
        ([(3, 3), (3, 3)], True),
        ([(3, 2), (3, 3)], False),
        ([(3, 3), (0, 0)], False),
        ([(3, 0), (3, 3), (3, 3)], True),
    ],
)
def test_two_rounds_of_crashes_end_a_run(rounds, ends):
    plan = engine_plan("gaussian", clip=1.0, adjacency="zero-out", epsilon=4.0, releases=5)
    run = Run(plan, 7, lambda level, line: None)
    run.rounds += [
        entry(number, answered, crashed) for number, (answered, crashed) in enumerate(rounds, 1)
    ]
    assert (run.ends() is not None) is ends
