"""One round of training a linear softmax model on a cohort, for each of the paper's mechanisms.

Idea     what a simulation does between two steps: logits, softmax, residuals, clip factors (the norm of a rank-one
         gradient is the product of two norms), the mechanism, momentum, step. I-MVU and SignSGD go through the cohort
         kernels, the Gaussian through the exact law of a sum, Skellam and MVU through plain torch operations on all
         per-client gradients. Decoding constants are left out where they change no time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from quietbit.kernel.sampler import Sampler
from quietbit_lab.cohort.codes import sum_codes
from quietbit_lab.cohort.sums import BitLaw, count_ones

KEY = bytes(range(100, 132))


@lru_cache(maxsize=16)
def make_sampler(bits: int, epsilon: float = 1.0, clip: float = 1.0) -> Sampler:
    """Two levels whose log-ratios reach ``epsilon``; a stand-in for a solved design."""
    symbols = 2**bits
    middle = np.sqrt(np.arange(symbols) * (symbols - 1.0 - np.arange(symbols)))[None, :] / symbols
    slope = 2 * epsilon * np.arange(symbols)[None, :] / (symbols - 1)
    zero = np.zeros((1, symbols))
    return Sampler(bits, 2, 0.5 / clip, 0.0, 1.0, middle, slope, zero, zero)


def plain_counts(left: Any, right: Any) -> Any:
    """Counts as one would write them with torch: all gradients, all probabilities, all bits."""
    logits = left[0, :, :, None] * right[:, None, :]
    return torch.bernoulli(torch.sigmoid(logits)).sum(dim=0)


class Round:
    """One round of training a linear softmax model on a cohort: everything a simulation does between two steps."""

    def __init__(self, shape: tuple[int, int, int], epsilon: float = 1.0, clip: float = 1.0) -> None:
        clients, classes, features = shape
        self.right = torch.randn((clients, features), device="cuda") * 0.1
        self.right[:, -1] = 1.0
        self.lengths = self.right.norm(dim=1)
        self.labels = torch.nn.functional.one_hot(torch.randint(0, classes, (clients,), device="cuda"), classes).float()
        self.weights = torch.zeros((features, classes), device="cuda")
        self.moving = torch.zeros((classes, features), device="cuda")
        self.key = torch.tensor(np.frombuffer(KEY, "<i4").astype(np.int32), device="cuda")
        self.epsilon, self.clip, self.clients = epsilon, clip, clients
        grid = torch.arange(256, device="cuda")
        common = torch.stack([((grid[:, None] & grid[None, :]) >> k) & 1 for k in range(8)]).sum(dim=0)
        self.hadamard = (1.0 - 2.0 * (common % 2)) / 16.0
        self.signs = torch.randint(0, 2, (65536,), device="cuda") * 2.0 - 1.0

    def left(self) -> Any:
        """Residuals, clipped: the norm of a rank-one gradient is the product of two norms."""
        residual = torch.softmax(self.right @ self.weights, dim=1) - self.labels
        norm = residual.norm(dim=1) * self.lengths
        return residual * (self.clip / norm.clamp(min=self.clip))[:, None]

    def step(self, mean: Any) -> None:
        """Momentum and a step."""
        self.moving.mul_(0.5).add_(mean)
        self.weights.add_(self.moving.t(), alpha=-0.01)

    def one_bit(self, law: BitLaw, scale: float, sampler: Callable[..., Any] = count_ones) -> None:
        """A round of a one-bit mechanism; ``scale`` is the reach."""
        left = (self.left() * (scale / self.clip))[None].contiguous()
        if sampler is count_ones:
            counts = count_ones(law, left, self.right, words_key=self.key, reach=scale)[0]
        else:
            counts = sampler(left, self.right)
        self.step((2.0 * counts / self.clients - 1.0) * (self.clip / scale))
        self.key.add_(1)

    def several_bits(self, bits: int) -> None:
        """A round of I-MVU with ``bits`` bits, two levels."""
        sampler, table = make_sampler(bits, self.epsilon, self.clip), np.arange(2**bits) * 2**20
        sums = sum_codes(sampler, self.left()[None].contiguous(), self.right, table=table, words_key=self.key)[0]
        self.step(sums.float() * (2.0**-20 / self.clients))
        self.key.add_(1)

    def gradients(self) -> Any:
        """All per-client gradients, for the mechanisms that have no kernel of their own."""
        return (self.left()[:, :, None] * self.right[:, None, :]).flatten(1)

    def dithered(self, bits: int) -> None:
        """MVU in plain torch: every coordinate dithered to the grid, then a row of the table drawn from."""
        levels, size = 2**bits, self.moving.shape
        place = (0.5 + 0.5 * self.gradients() / self.clip) * (levels - 1)
        at = (place + torch.rand_like(place)).floor().clamp_(0, levels - 1).long()
        table = torch.softmax(-torch.cdist(*(torch.linspace(0, 1, levels, device="cuda")[:, None],) * 2), dim=1)
        edges, word = table.cumsum(dim=1), torch.rand_like(place)
        codes = torch.stack([word >= edges[:, k][at] for k in range(levels - 1)]).sum(dim=(0, 1))
        self.step(codes.view(size) / self.clients)

    def skellam(self, bits: int, scale: float = 64.0, variance: float = 16.0) -> None:
        """Skellam in plain torch: rotate, round at random, add noise, wrap.

        Wrapping goes through sums, and a sum of Skellam variables is one, so the noise is drawn once, with the law of
        the sum. The norm of the rounded vectors is not looked at again: a client would round anew about once in two.
        """
        flat = torch.nn.functional.pad(self.gradients(), (0, 65536 - self.moving.numel())) * self.signs
        turned = (self.hadamard @ flat.view(-1, 256, 256) @ self.hadamard).flatten(1) * scale
        total = (turned + torch.rand_like(turned)).floor_().sum(dim=0)
        half = torch.full_like(total, variance * self.clients / 2)
        total = total + torch.poisson(half) - torch.poisson(half)
        total = torch.remainder(total + 2.0 ** (bits - 1), 2.0**bits) - 2.0 ** (bits - 1)
        back = (self.hadamard @ total.view(256, 256) @ self.hadamard).flatten() * self.signs
        self.step(back[: self.moving.numel()].view(self.moving.shape) / (scale * self.clients))

    def gaussian(self, sigma: float) -> None:
        """The sum of independent Gaussians is one Gaussian: its law is exact, and no client is simulated."""
        total = self.left().t() @ self.right
        self.step((total + sigma * self.clip * self.clients**0.5 * torch.randn_like(total)) / self.clients)
