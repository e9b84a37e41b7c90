"""Central DP-SGD, the yardstick of secure aggregation: a trusted server adds noise once, to the sum.

Idea     clients send clipped updates as 32-bit floats; the server adds them up and adds Gaussian noise of standard
         deviation noise_multiplier * clip to the sum. One client moves the sum by at most the clip (zero-out), so
         the account of the sum is that of one `Gaussian` release, under central trust.
Symbols  m = cohort; the mean carries noise of standard deviation noise_multiplier * clip / m per coordinate.
Source   Abadi et al. (2016) without amplification by sampling; McMahan et al. (2018), user-level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.mechanism.additive import Gaussian
from quietbit.plan.problem import Rows
from quietbit.simulate.client_rng import CLIENT_BITS, ClientRng
from quietbit.simulate.cohort import PlainCollector

__all__ = ["CentralCollector"]

SERVER = 2**CLIENT_BITS - 1  # whose words the noise takes: no client has this number


@final
@dataclass(frozen=True, slots=True, eq=False)
class CentralCollector:
    """The mean of clipped updates with noise added once; clients trust the server with what they send."""

    plain: PlainCollector
    mechanism: Gaussian
    rng: ClientRng

    @property
    def bytes_per_client(self) -> int:
        """32-bit floats."""
        return self.plain.bytes_per_client

    def mean(self, parameters: Rows, clients: NDArray[np.int64], number: int) -> FloatVector:
        """The noisy sum over the size of the cohort, which is public."""
        exact = self.plain.mean(parameters, clients, number)
        block = self.rng(number, SERVER).draw(exact.size)
        return np.asarray(self.mechanism.noisy(exact * clients.size, block, 0) / clients.size)
