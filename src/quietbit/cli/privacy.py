"""``quietbit privacy``: every constant of an interpolated mechanism, and the guarantee in words."""

from __future__ import annotations

from typing import Annotated

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, guarantee_rows, record, rounded, rounded_up
from quietbit.cli.options import (
    AdjacencyOption,
    BetaOption,
    ClampOption,
    DeltaOption,
    DesignArgument,
    DimensionOption,
    NormOption,
    RadiusOption,
    ReleasesOption,
    SamplesOption,
    find_design,
    refuse_delta_zero,
)
from quietbit.errors import check_int
from quietbit.target import as_adjacency

__all__ = ["privacy"]


def privacy(
    design: DesignArgument,
    adjacency: AdjacencyOption,
    norm: NormOption = "l2",
    beta: BetaOption = 1.0,
    clamp: ClampOption = False,
    radius: RadiusOption = 1.0,
    dimension: DimensionOption = 1000,
    releases: ReleasesOption = 1,
    delta: DeltaOption = 1e-5,
    order: Annotated[float, typer.Option(help="Rényi order at which kappa is shown (more than two levels).")] = 2.0,
    samples: SamplesOption = None,
    json: JsonOption = False,
) -> None:
    """Say what a design costs when updates in a ball are sent with it (I-MVU).

    Example: quietbit privacy metric-l1_levels-2_bits-1_eps-1_exact --norm l2 --beta 1 --adjacency zero-out
    --releases 50 --delta 1e-5
    """
    from quietbit.privacy.divergence import lipschitz_upper, paper_constant_upper, zero_out_constant_upper
    from quietbit.privacy.renyi import fisher_supremum_upper, kappa_upper

    found, ball = find_design(design), quietbit.Ball(norm, radius, dimension)
    which = as_adjacency(adjacency)
    refuse_delta_zero(delta, ball.norm)
    check_int(releases, "releases", 1)
    mechanism = quietbit.InterpolatedMVU(found, ball, beta, clamp)
    guarantee = (mechanism.privacy(which, samples) * releases).guarantee(delta)
    low, high = mechanism.scaling.certified_range
    constants = {
        "zero_out_constant_upper": ("zero-out constant", zero_out_constant_upper(found, low, high)),
        "lipschitz_upper": ("L, exact Lipschitz constant", lipschitz_upper(found, low, high)),
        "paper_constant_upper": ("epsilon + epsilon' of the paper", paper_constant_upper(found, low, high)),
    }
    if found.spec.input_levels == 2:
        constants["fisher_supremum_upper"] = ("M, Fisher information", fisher_supremum_upper(found))
    else:
        kappa = kappa_upper(found, order, which, low, high)
        constants["kappa_upper"] = (f"kappa at order {order:g}", kappa)
    distance = mechanism.scaling.distance(which, mechanism.ball)
    rows = [
        Row("identity", "design", found.identity()),
        Row("input_range", "inputs x lie in", [mechanism.scaling.low, mechanism.scaling.high]),
        Row("distance", f"{norm} distance of neighbours", distance, rounded(distance)),
        *(Row(key, label, value, rounded_up(value, 8)) for key, (label, value) in constants.items()),
        Row("releases", "releases", releases),
        *guarantee_rows(guarantee),
    ]
    record(f"I-MVU on an {norm} ball of radius {radius:g}, beta {beta:g}", rows, json)
