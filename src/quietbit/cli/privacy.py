"""``quietbit privacy``: every constant of an interpolated mechanism, and the guarantee in words."""

from __future__ import annotations

from typing import Annotated

import typer

import quietbit
from quietbit.cli import options
from quietbit.cli.console import JsonOption, Row, record, rounded, rounded_up
from quietbit.cli.rows import guarantee_rows
from quietbit.errors import check_int
from quietbit.target import Adjacency

__all__ = ["privacy"]


def privacy(
    design: options.DesignArgument,
    adjacency: options.AdjacencyOption,
    norm: options.NormOption = "l2",
    beta: options.BetaOption = 1.0,
    clamp: options.ClampOption = False,
    radius: options.RadiusOption = 1.0,
    dimension: options.DimensionOption = 1000,
    releases: options.ReleasesOption = 1,
    delta: options.DeltaOption = 1e-5,
    order: Annotated[float, typer.Option(help="Rényi order at which kappa is shown (more than two levels).")] = 2.0,
    samples: options.SamplesOption = None,
    json: JsonOption = False,
) -> None:
    """Say what a design costs when updates in a ball are sent with it (I-MVU).

    Example: quietbit privacy metric-l1_levels-2_bits-1_eps-1_exact --norm l2 --beta 1 --adjacency zero-out
    --releases 50 --delta 1e-5
    """
    from quietbit.privacy.divergence import lipschitz_upper, paper_constant_upper, zero_out_constant_upper
    from quietbit.privacy.renyi import fisher_supremum_upper, kappa_upper

    found, ball, which = options.find_design(design), quietbit.Ball(norm, radius, dimension), Adjacency(adjacency)
    options.refuse_delta_zero(delta, ball.norm)
    check_int(releases, "releases", 1)
    mechanism = quietbit.InterpolatedMVU(found, ball, beta, clamp)
    guarantee = (mechanism.privacy(which, samples) * releases).guarantee(delta)
    low, high = mechanism.scaling.certified_range
    constants = [
        ("zero_out_constant_upper", "zero-out constant", zero_out_constant_upper(found, low, high)),
        ("lipschitz_upper", "L, exact Lipschitz constant", lipschitz_upper(found, low, high)),
        ("paper_constant_upper", "epsilon + epsilon' of the paper", paper_constant_upper(found, low, high)),
    ]
    if found.spec.input_levels == 2:
        constants.append(("fisher_supremum_upper", "M, Fisher information", fisher_supremum_upper(found)))
    else:
        constants.append(("kappa_upper", f"kappa at order {order:g}", kappa_upper(found, order, which, low, high)))
    distance = mechanism.scaling.distance(which, mechanism.ball)
    rows = [
        Row("identity", "design", found.identity()),
        Row("input_range", "inputs x lie in", [mechanism.scaling.low, mechanism.scaling.high]),
        Row("distance", f"{norm} distance of neighbours", distance, rounded(distance)),
        *(Row(key, label, value, rounded_up(value, 8)) for key, label, value in constants),
        Row("releases", "releases", releases),
        *guarantee_rows(guarantee),
    ]
    record(f"I-MVU on an {norm} ball of radius {radius:g}, beta {beta:g}", rows, json)
