"""Accounts of 2,000 random settings: what was computed before the accounts were joined, and what is
computed now.

`test_accounts.py` compares every fortieth, and all of them (a few minutes) with
`QUIETBIT_EVERY_ACCOUNT=1`. `accounts.npz` holds four epsilons for every
setting. Three accountants computed three of them before there was one `Account`: `planned` (a list
fixed in advance), `ledger` (`Ledger.guarantee`, adaptive) and `cap` (a node's filter). The fourth,
`adaptive`, is the smallest that an adaptive `Account` has had: it never grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from quietbit.design.profile import Profile
from quietbit.design.table import Design, DesignSpec, exact_rows
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.vector import VectorMVU
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import IndependentSkellam, Skellam
from quietbit_lab.design.search import solve
from quietbit_lab.shuffle.observers import shuffled_privacy

SEED, COUNT = 20_261_116, 2000
MODES = ("planned", "adaptive")
STORED = Path(__file__).with_name("accounts.npz")
ROUND, POINTED = Ball(Norm.L2, 4096), Ball(Norm.L1, 257)
STRENGTHS = (0.05, 0.2, 0.7, 1.5, 4.0)
KINDS = (
    "gaussian",
    "laplace",
    "sign",
    "sign-laplace",
    "imvu",
    "imvu-clamped",
    "imvu-codes",
    "imvu-levels",
    "imvu-l1",
    "mvu",
    "mvu-l1",
    "skellam",
    "independent-skellam",
    "vmvu",
    "vmvu-direct",
    "watched-gaussian",
    "watched-vmvu",
)
BY_SAMPLE = ("gaussian", "laplace", "sign", "imvu", "imvu-l1", "independent-skellam")
BY_SUM = ("imvu", "imvu-clamped", "imvu-binomial")
ANSWER = 0.1000000000000011  # pure, beside every update of a "watched" kind
GONE = ("vmvu-direct", "imvu-binomial")  # normals of 4 bits, and sums of codes of 2 bits
PURE = ("laplace", "imvu-l1", "mvu-l1", "vmvu")


@dataclass(frozen=True)
class Setting:
    """One account: (kind, strength, k or crowd or samples, releases) of every part, and what is
    asked of them.
    """

    parts: tuple[tuple[str, float, int, int], ...]
    unit: Unit
    trust: Trust
    adjacency: Adjacency
    delta: float
    epsilon: float


def setting(number: int) -> Setting:
    """The setting of this number, from the seed."""
    rng = np.random.default_rng([SEED, number])
    adjacency = Adjacency.ZERO_OUT if rng.random() < 0.5 else Adjacency.REPLACE_ONE
    delta = 0.0 if rng.random() < 0.15 else float(10 ** rng.uniform(-9, -3))
    epsilon = float(10 ** rng.uniform(-1, 1.3))
    which = rng.random()
    unit, trust, known = Unit.CLIENT, Trust.LOCAL, KINDS
    if which < 0.1:
        unit, known = Unit.SAMPLE, BY_SAMPLE
    elif which < 0.2:
        trust, known = Trust.SECURE_AGGREGATION, BY_SUM
    elif which < 0.25:
        trust, known = Trust.SHUFFLED, PURE
    parts = []
    for _ in range(int(rng.choice([1, 2, 3], p=[0.6, 0.25, 0.15]))):
        kind, strength = str(rng.choice(known)), float(rng.choice(STRENGTHS))
        extra = int(rng.choice([10, 1000]))
        times = round(200 ** rng.random())
        local = trust is not Trust.LOCAL and rng.random() < 0.2 and kind != "imvu-binomial"
        parts.append(
            (
                kind,
                strength,
                0 if local or (unit, trust) == (Unit.CLIENT, Trust.LOCAL) else extra,
                times,
            )
        )
    return Setting(tuple(parts), unit, trust, adjacency, delta, epsilon)


def binomial(epsilon: float) -> Design:
    """A design of two bits whose codes are sums of three equal bits."""
    each = epsilon / 3
    choose = np.log([1, 3, 3, 1])
    odds = np.array([[-each], [each]])
    logs = choose + np.arange(4) * odds - 3 * np.logaddexp(0.0, odds)
    half_width = 0.5 / math.tanh(each / 2)
    alphabet = 0.5 + half_width * (2 * np.arange(4) / 3 - 1)
    return Design(DesignSpec(2, 2, epsilon), exact_rows(np.exp(logs)), alphabet)


@cache
def mechanism(kind: str, strength: float) -> Any:
    """A mechanism of this kind; ``strength`` is about its epsilon."""
    if kind.startswith("watched-"):  # `cost` adds an answer of its own to it
        return mechanism(kind.removeprefix("watched-"), strength)
    noise = 1 / strength
    table = {
        "gaussian": lambda: Gaussian(ROUND, 3 * noise),
        "laplace": lambda: Laplace(POINTED, noise),
        "sign": lambda: Sign(Gaussian(ROUND, 3 * noise)),
        "sign-laplace": lambda: Sign(Laplace(POINTED, noise)),
        "imvu": lambda: InterpolatedMVU(solve(DesignSpec(2, 1, strength), cache=False), ROUND),
        "imvu-clamped": lambda: InterpolatedMVU(
            solve(DesignSpec(2, 1, strength / 8), cache=False), ROUND, 8.0, True
        ),
        "imvu-codes": lambda: InterpolatedMVU(binomial(strength), ROUND, 4.0, True),
        "imvu-levels": lambda: InterpolatedMVU(
            solve(DesignSpec(3, 1, strength), cache=False), ROUND
        ),
        "imvu-l1": lambda: InterpolatedMVU(solve(DesignSpec(2, 1, strength), cache=False), POINTED),
        "mvu": lambda: DitheredMVU(solve(DesignSpec(9, 1, strength), cache=False), ROUND),
        "mvu-l1": lambda: DitheredMVU(solve(DesignSpec(9, 1, strength), cache=False), POINTED),
        "skellam": lambda: Skellam(ROUND, 3 * noise),
        "independent-skellam": lambda: IndependentSkellam(
            Skellam(ROUND, max(3 * noise, 1.0), rotation_seed=5)
        ),
        "vmvu": lambda: VectorMVU(
            Profile.from_weights(
                [-0.5, 0.6, 1.4], [1.0, 1 + strength / 3, 1 + strength, (1 + strength) ** 1.5]
            ),
            ROUND,
            keep=1024,
        ),
    }
    return table[kind]()


def cost(part: tuple[str, float, int, int], asked: Setting) -> Any:
    """What one release of a part costs, under the setting's words."""
    kind, strength, extra, _ = part
    found = mechanism(kind, strength)
    if asked.unit is Unit.SAMPLE:
        return found.privacy(asked.adjacency, extra)
    if asked.trust is Trust.SECURE_AGGREGATION and extra:
        return found.sum_privacy(extra, asked.adjacency)
    if asked.trust is Trust.SHUFFLED and extra:
        return shuffled_privacy(found, asked.adjacency, extra)
    alone = found.privacy(asked.adjacency).under(trust=asked.trust)
    return alone + Cost.pure(ANSWER).like(alone) if kind.startswith("watched-") else alone


def accounts(asked: Setting) -> tuple[float, float]:
    """Planned and adaptive epsilon of a setting, as they are computed now."""
    words = {"unit": asked.unit, "trust": asked.trust}
    found = [
        Account(Target(asked.epsilon, asked.delta, asked.adjacency, **words), mode)
        for mode in MODES
    ]
    for part in asked.parts:
        found = [account.spend(cost(part, asked), part[3]) for account in found]
    return found[0].epsilon(), found[1].epsilon()


def compare(number: int, before: Mapping[str, Any]) -> tuple[str, float]:
    """Hold one setting against what was computed before: (what became of it, adaptive over planned
    epsilon).

    Planned: the same number, to what a bisection leaves (1e-7 for shuffles). Adaptive: never below
    planned, but for the 1e-12 that a slack may be; never above what it was; and not above the
    smaller of what the ledger and the node's cap said, but for two reasons, which are told apart:
    "mixture", another mechanism than the first was used, and the accounts that hold for mixtures
    have smaller shares of delta than they had; "tight", one mechanism that was accounted by a
    single order or by its largest loss already, and pays a tenth of delta now instead of three
    hundredths: at most 1 % of epsilon. Of the 2,000 these are 121 and four; with delta multiplied
    by what its share has lost since, 0.97 / 0.07 for 123 of them, all of them are below what they
    were.
    """
    asked = setting(number)
    if any(part[0] in GONE for part in asked.parts):
        return "refused", 1.0
    planned, adaptive = accounts(asked)
    old, stopped = before["planned"][number], min(before["ledger"][number], before["cap"][number])
    ratio = 1.0 if adaptive == planned else adaptive / planned if planned else math.inf
    if not (planned == old or abs(planned - old) <= 1e-6 * old):
        return ("planned is smaller" if planned < old else "PLANNED IS LARGER"), ratio
    if not adaptive >= planned - 1e-12:
        return "ADAPTIVE IS BELOW PLANNED", ratio
    if not adaptive <= before["adaptive"][number] * (1 + 1e-6):
        return "ADAPTIVE IS LARGER", ratio
    if adaptive <= stopped * (1 + 1e-9):
        return ("smaller" if adaptive < stopped * (1 - 1e-9) else "the same"), ratio
    return ("mixture" if len({part[:3] for part in asked.parts}) > 1 else "tight"), ratio
