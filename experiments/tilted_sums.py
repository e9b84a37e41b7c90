"""What stands between secure sums and the exact account: tilts raise the variance of their loss.

At the log-odds U it is 1 + 3 U^2 over all tilts, and cosh(U/2)^2, about 1 + U^2 / 4, without: 1.055
and 1.0045 for 0.134, 1.221 and 1.018 for 0.27. A window of tilts helps large sums alone.

    python experiments/tilted_sums.py
"""

import math

import numpy as np
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


if __name__ == "__main__":
    for bound in (0.134, 0.27):
        without, with_all = (largest_variance(1000, bound, reach) for reach in (0.0, 12.0))
        print(f"log-odds {bound}: {without:.3f} without tilts, {with_all:.3f} over all")
    for clients in (1000, 10_000, 100_000):
        print(f"{clients} clients, tilts of up to 6: {largest_variance(clients, 0.134, 6.0):.3f}")
