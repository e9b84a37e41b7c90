"""A pair of guarantees: in sentences, and never a mixture."""

import pytest

from quietbit.errors import InvalidParameter
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee, GuaranteePair
from quietbit.target import Adjacency, Target, Trust, Unit
from refusals import refuses

REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
SERVER = Guarantee(4.0, 1e-6, Unit.CLIENT, REPLACE, Trust.LOCAL)
RESULT = Guarantee(0.1386, 1e-6, Unit.CLIENT, REPLACE, Trust.SHUFFLED)


def test_both_are_said():
    said = GuaranteePair(SERVER, RESULT, 60_000, 1, True).sentence()
    assert "Against the server: epsilon <= 4 " in said
    assert "Against those who see the result alone: epsilon <= 0.1386 " in said
    assert "60,000 clients that release in a secret order, once" in said
    assert "in the same round, 8 times" in GuaranteePair(SERVER, RESULT, 50, 8).sentence()


def test_no_second_guarantee_needs_a_reason():
    said = GuaranteePair(SERVER, None, reason="the order is public").sentence()
    assert said.endswith("no less is promised, because the order is public.")
    with refuses("reason", ""):
        GuaranteePair(SERVER, None)


@pytest.mark.parametrize(
    ("server", "result", "more"),
    [
        (RESULT, RESULT, {"crowd": 5}),
        (SERVER, SERVER, {"crowd": 5}),
        (SERVER, RESULT, {}),
        (SERVER, RESULT, {"crowd": 5, "reason": "both"}),
        (SERVER, Guarantee(0.1, 1e-6, Unit.CLIENT, ZERO, Trust.SHUFFLED), {"crowd": 5}),
        (Guarantee(4.0, 1e-6, Unit.CLIENT, REPLACE, Trust.CENTRAL), RESULT, {"crowd": 5}),
    ],
)
def test_mixtures_are_refused(server, result, more):
    with pytest.raises(InvalidParameter):
        GuaranteePair(server, result, **more)


def test_a_ledger_of_shuffles_takes_local_releases_and_not_the_other_way_round():
    """What was released in the open is seen by everybody.

    What a crowd hid from others the server saw.
    """
    shuffled = Cost.pure(0.1).of(REPLACE, Unit.CLIENT, Trust.SHUFFLED)
    local = Cost.pure(1.0).of(REPLACE, Unit.CLIENT, Trust.LOCAL)
    both = Account(Target(2.0, 0.0, REPLACE, trust=Trust.SHUFFLED)).spend(shuffled, 2).spend(local)
    assert both.epsilon() == pytest.approx(1.2)
    for trust in (Trust.LOCAL, Trust.CENTRAL, Trust.SECURE_AGGREGATION):
        with refuses("trust", trust.value):
            Account(Target(2.0, 0.0, REPLACE, trust=trust)).spend(shuffled)
