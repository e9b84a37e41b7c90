import pytest

import quietbit
from quietbit.kernel.client_rng import client_rng, seeded_client_rng


def test_seeds_do_not_collide():
    rng = seeded_client_rng(7)
    assert repr(rng(1, 2)) != repr(rng(2, 1))
    assert repr(rng(1, 2)) == repr(seeded_client_rng(7)(1, 2))
    assert repr(rng(0, 0)) != repr(seeded_client_rng(8)(0, 0))
    with pytest.raises(quietbit.InvalidParameter):
        seeded_client_rng(-1)
    assert "secure" in repr(client_rng("secure", 7)(0, 0))
    assert repr(client_rng("seeded", 7)(3, 4)) == repr(rng(3, 4))
