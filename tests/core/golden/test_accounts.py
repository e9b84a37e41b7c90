"""A sample of the 2,000 accounts of `accounts.py`, held against what was computed before there
was one account.
"""

import os

import numpy as np
import pytest

from core.golden.accounts import COUNT, STORED, compare

BEFORE = dict(np.load(STORED))
EVERY = int(os.environ.get("QUIETBIT_EVERY_ACCOUNT", "40"))
SLOW = (920,)  # takes seconds: binomial codes in sums of a thousand clients


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(one, marks=pytest.mark.long) if one in SLOW else one
        for one in range(0, COUNT, EVERY)
    ],
)
def test_an_account_agrees_with_what_it_was(number):
    said, ratio = compare(number, BEFORE)
    assert said in ("the same", "smaller", "mixture", "tight", "planned is smaller", "refused")
    assert said != "tight" or ratio <= 1.01
