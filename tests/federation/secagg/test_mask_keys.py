"""Keys of masks: each follows from a secret, from who masks, and from the sum."""

from itertools import product

from federation.secagg.kit import plan_of
from quietbit.secagg import keys
from quietbit.secagg.client import masking_key, pair_mask_key, self_mask_key

SEEDS = (b"a" * 32, b"b" * 32)
SUMS = (b"one sum", b"another sum")


def test_a_clients_own_mask_follows_from_its_seed_its_number_and_the_sum():
    """A mask that did not depend on the seed could be taken off by anybody."""
    made = {
        self_mask_key(description, number, seed)
        for description, number, seed in product(SUMS, (1, 2), SEEDS)
    }
    assert len(made) == 8


def test_the_mask_of_a_pair_follows_from_both_secrets_and_the_sum():
    plans = [plan_of(4, 3, active=False, name=name) for name in SUMS]
    made = set()
    for plan, first, second in product(plans, SEEDS, SEEDS):
        privates = [masking_key(plan, 1, first), masking_key(plan, 2, second)]
        publics = [keys.public_key(private) for private in privates]
        ours = pair_mask_key(plan.context, 1, 2, privates[0], publics[0], publics[1])
        theirs = pair_mask_key(plan.context, 2, 1, privates[1], publics[1], publics[0])
        assert ours == theirs
        made.add(ours)
    assert len(made) == 8
