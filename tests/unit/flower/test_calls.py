"""One message of a Flower server: how many Python calls of the library it takes, once a run is under way."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
sys.path.append(str(Path(__file__).parents[3] / "docs" / "hooks"))
from walk import _walked

from quietbit.flower import PrivateUplink
from unit.flower.kit import CONFIG, DIMENSION, SIMULATED, app, context
from unit.flower.test_client import question
from unit.node.makers import write_policy

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


@pytest.mark.parametrize("owned", [True, False])
def test_a_message_takes_few_calls(owned, tmp_path):
    """731 calls in 35 files before plan, policy, ledger and uplink were kept; today some 190 beside the send.

    A third of them keep the owner's record of decisions, and look for a budget before the ledger is locked.
    """
    config = CONFIG | {"quietbit.epsilon": 1e3}
    own = {"quietbit_policy": write_policy(tmp_path, epsilon=1e6)} if owned else {}
    place, mod = context(11, config=config, **own), PrivateUplink() if owned else SIMULATED
    messages = iter([question(number) for number in (1, 2)])
    walk = _walked(lambda: mod(next(messages), place, app(np.full(DIMENSION, 0.01))))
    start = next(place for place, hop in enumerate(walk.hops) if (hop.file, hop.function) == ("wire/uplink.py", "send"))
    rest = (place for place, hop in enumerate(walk.hops[start + 1 :]) if hop.depth <= walk.hops[start].depth)
    assert walk.calls - (1 + next(rest)) <= 200
    assert walk.calls <= 310
    assert len(walk.files) <= 32
