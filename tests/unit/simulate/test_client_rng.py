import numpy as np
import pytest

import quietbit
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit.simulate.client_rng import RowBlock, secure_client_rng, seeded_client_rng

USED, WIDTH, ROWS = 13, 16, 4


@pytest.fixture(params=["seeded", "secure"])
def blocks(request):
    make = seeded_rng(3) if request.param == "seeded" else secure_rng()
    return [make.draw(USED) for _ in range(ROWS)]


def test_rows_carry_their_own_words(blocks):
    rows = RowBlock(blocks, USED, WIDTH)
    table = rows.primary(0, ROWS * WIDTH).reshape(ROWS, WIDTH)
    for row, block in zip(table, blocks, strict=True):
        np.testing.assert_array_equal(row[:USED], block.primary(0, USED))
        assert not row[USED:].any()


def test_reading_may_start_and_stop_anywhere(blocks):
    rows = RowBlock(blocks, USED, WIDTH)
    whole = rows.primary(0, ROWS * WIDTH)
    for start in range(0, ROWS * WIDTH, 5):
        reader = rows.reader(start)
        pieces, at = [], start
        for count in (1, 3, 7, 20):
            out = np.empty(min(count, ROWS * WIDTH - at), dtype="<u2")
            reader.fill(out)
            pieces.append(out)
            at += out.size
        np.testing.assert_array_equal(np.concatenate(pieces), whole[start:at])


def test_ties_come_from_the_row(blocks):
    indices = np.array([0, 5, 14, 17, 40, 63], dtype=np.int64)
    found = RowBlock(blocks, USED, WIDTH).ties(indices)
    wanted = [0 if i % WIDTH >= USED else int(blocks[i // WIDTH].ties(np.array([i % WIDTH]))[0]) for i in indices]
    assert found.tolist() == wanted


def test_seeds_do_not_collide():
    rng = seeded_client_rng(7)
    assert repr(rng(1, 2)) != repr(rng(2, 1))
    assert repr(rng(1, 2)) == repr(seeded_client_rng(7)(1, 2))
    assert repr(rng(0, 0)) != repr(seeded_client_rng(8)(0, 0))
    with pytest.raises(quietbit.InvalidParameter):
        seeded_client_rng(-1)
    assert "secure" in repr(secure_client_rng()(0, 0))
