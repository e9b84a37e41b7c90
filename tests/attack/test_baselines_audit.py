"""The auditor on the field: no alarm without a fault, and a response that is too strong is seen.

False alarms: 1e-9 per audit. Seeds are fixed; faults are found with a margin.
"""

import pytest
from attrs import evolve

from attack.faults import Tampered, names
from core.statistical.kit import seed
from lab.baseline.makers import BASELINES
from quietbit.kernel.rng import seeded_rng
from quietbit.target import Adjacency
from quietbit_lab.auditor.audit import audit

SURE = 1 - 1e-9


def look(target, samples):
    return audit(
        target,
        Adjacency.REPLACE_ONE,
        rng=seeded_rng(seed(1)),
        samples=samples,
        delta=0.0,
        confidence=SURE,
    )


@pytest.mark.parametrize("name", ["cldp three bits", "dp-rec"])
def test_nothing_is_found_without_a_fault(name):
    """Two of them; `benchmarks/field.py --audit` looks at all, and longer."""
    assert look(BASELINES[name], 100).failures == ()


def test_a_release_that_reveals_twice_as_much_is_seen():
    """It decodes with the honest gain, so that the mean is too long: the response is what gives
    it away.
    """
    honest = BASELINES["mmrc"]
    louder = evolve(honest, design_epsilon=2 * honest.design_epsilon)

    class Stronger(Tampered):
        def receive(self, payloads):
            return super().receive(payloads) * (louder.gain / honest.gain)

    found = look(Stronger(honest, louder), 150)
    assert found.verdict == "failed"
    assert "response" in names(found)
