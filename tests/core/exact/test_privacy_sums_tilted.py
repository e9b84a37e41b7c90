"""What stands between secure sums and the exact account.

How far tilts raise the variance of a sum's privacy loss.
"""

import math

import numpy as np
import pytest
from scipy.special import expit, gammaln


def largest_variance(clients: int, bound: float, reach: float) -> float:
    """Of the loss of a sum, times clients / x^2, over tilts of up to ``reach`` standard deviations.

    The others are all at the log-odds ``bound``; the protected client's move between 0 and one end.
    """
    others, sums = clients - 1, np.arange(1, clients)
    log_law = (
        gammaln(clients) - gammaln(sums + 1) - gammaln(clients - sums) + sums * bound
    )  # up to a constant
    ratio = np.exp(np.log(sums / (clients - sums)) - bound)  # q(s - 1) / q(s)
    ends = -gammaln(1.0), others * bound
    best = 0.0
    for here, there in ((-bound, 0.0), (0.0, -bound), (bound, 0.0)):
        p, q = expit(here), expit(there)
        inner = np.log1p(p * (ratio - 1)) - np.log1p(q * (ratio - 1))
        loss = np.concatenate([[math.log((1 - p) / (1 - q))], inner, [math.log(p / q)]])
        middle = log_law + np.log1p(q * (ratio - 1))
        law = np.concatenate([[ends[0] + math.log(1 - q)], middle, [ends[1] + math.log(q)]])
        x = abs(here - there) / 2
        for tilt in np.linspace(-reach, reach, 81):
            tilted = law + tilt * math.sqrt(clients) / x * loss
            weights = np.exp(tilted - tilted.max())
            weights /= weights.sum()
            best = max(best, float(weights @ (loss - weights @ loss) ** 2) * clients / x**2)
    return best


@pytest.mark.parametrize(("bound", "all_tilts"), [(0.134, 1.055), (0.27, 1.221)])
def test_tilts_cost_twelve_times_what_the_noise_of_others_does(bound, all_tilts):
    """As the page says: 1 + 3 U^2 over all tilts, cosh(U/2)^2, about 1 + U^2 / 4, without."""
    assert largest_variance(1000, bound, 0.0) == pytest.approx(
        math.cosh(bound / 2) ** 2, abs=0.012 * bound / 0.134
    )
    assert largest_variance(1000, bound, 12.0) == pytest.approx(all_tilts, abs=2e-3)
    assert all_tilts - 1 == pytest.approx(3 * bound**2, rel=0.05)


def test_a_window_of_tilts_helps_large_sums_alone():
    found = [largest_variance(clients, 0.134, 6.0) for clients in (1000, 10_000, 100_000)]
    np.testing.assert_allclose(found, [1.055, 1.027, 1.010], atol=2e-3)
