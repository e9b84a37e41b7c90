"""One message of a Flower server: how many Python calls of the library it takes, once a run is
under way.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
sys.path.append(str(Path(__file__).parents[3] / "docs" / "hooks"))
from walk import _walked

from engines.flower.kit import CONFIG, DIMENSION, app, as_actor, context
from engines.flower.test_client import request
from federation.node.makers import write_policy
from quietbit.flower import PrivateClientApp, Simulation
from quietbit.flower.client import _Exchange

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def sends(walk):
    """The calls below each `Uplink.send` of a walk, itself among them."""
    found = []
    for place, hop in enumerate(walk.hops):
        if (hop.file, hop.function) == ("wire/uplink.py", "send"):
            below = [other.depth > hop.depth for other in walk.hops[place + 1 :]]
            found.append(1 + (below.index(False) if False in below else len(below)))
    return found


@pytest.mark.parametrize(("owned", "releases", "calls"), [(True, 2, 420), (False, 1, 258)])
def test_a_message_takes_few_calls(owned, releases, calls, tmp_path):
    """731 calls in 35 files before plan, policy, ledger and uplink were kept; a node with an owner
    makes zero, too.
    """
    config = CONFIG | {"quietbit.epsilon": 1e3}
    own = {"quietbit_policy": write_policy(tmp_path, epsilon=1e6)} if owned else {}
    place, messages = (
        context(11, config=config, **own),
        iter([request(number) for number in (1, 2)]),
    )
    mod, call = PrivateClientApp(simulation=Simulation(seed=7)), app(np.full(DIMENSION, 0.01))

    def answer():  # in this thread, which is the one that is watched
        exchange = _Exchange.of(mod, next(messages), place, call)
        exchange.answer(exchange.outbox)
        place.state = exchange.outbox.reply.state

    with contextlib.nullcontext() if owned else as_actor():
        walk = _walked(answer)
    assert len(sends(walk)) == releases
    assert walk.calls - sum(sends(walk)) <= 210 * releases
    assert walk.calls <= calls
    assert len(walk.files) <= 25
