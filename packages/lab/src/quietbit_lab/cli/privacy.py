"""``quietbit privacy``: every constant of an interpolated mechanism, and the guarantee in words."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, record, rounded, rounded_up
from quietbit.cli.options import option, takes, usual
from quietbit.cli.rows import guarantee_rows
from quietbit.errors import check_int, require
from quietbit.target import Adjacency
from quietbit_lab.cli.options import OF_IMVU, find_imvu

__all__ = ["privacy"]


@takes(
    *OF_IMVU,
    usual("dimension", 1000),
    usual("releases", 1),
    option("order", float, "Rényi order at which kappa is shown (more than two levels).", 2.0),
    usual("samples"),
)
def privacy(
    design: Annotated[
        str, typer.Argument(help="A design file, or a name that `quietbit catalogue` lists.")
    ],
    json: JsonOption = False,
    **given: Any,
) -> None:
    """Say what a design costs when updates in a ball are sent with it (I-MVU).

    Example: quietbit privacy metric-l1_levels-2_bits-1_eps-1_exact --norm l2 --beta 1 --adjacency
    zero-out --releases 50 --delta 1e-5
    """
    from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
    from quietbit.privacy.fisher import fisher_supremum_upper
    from quietbit.privacy.renyi import RenyiConstant
    from quietbit_lab.baseline.lemma_1 import paper_constant_upper

    which = Adjacency(given["adjacency"])
    releases = given["releases"]
    order = given["order"]
    mechanism = find_imvu(design, given)
    table = mechanism.design
    ball = mechanism.ball
    pure = given["delta"] == 0 and ball.norm is not quietbit.Norm.L1
    require(
        not pure,
        "delta",
        given["delta"],
        "above 0 for an l2 ball",
        "set --delta, or --norm l1 for pure privacy",
    )
    check_int(releases, "releases", 1)
    guarantee = (mechanism.privacy(which, given["samples"]) * releases).guarantee(given["delta"])
    low, high = mechanism.certified_range
    constants = [
        ("zero_out_constant_upper", "zero-out constant", zero_out_constant_upper(table, low, high)),
        ("lipschitz_upper", "L, exact Lipschitz constant", lipschitz_upper(table, low, high)),
        (
            "paper_constant_upper",
            "epsilon + epsilon' of the paper",
            paper_constant_upper(table, low, high),
        ),
    ]
    if table.spec.input_levels == 2:
        constants.append(
            ("fisher_supremum_upper", "M, Fisher information", fisher_supremum_upper(table))
        )
    else:
        constants.append(
            (
                "kappa_upper",
                f"kappa at order {order:g}",
                RenyiConstant(table, low, high, which).upper(order),
            )
        )
    distance = mechanism.distance(which)
    rows = [
        Row("identity", "design", table.identity()),
        Row("input_range", "inputs x lie in", list(mechanism.input_range)),
        Row("distance", f"{ball.norm.value} distance of neighbours", distance, rounded(distance)),
        *(Row(key, label, value, rounded_up(value, 8)) for key, label, value in constants),
        Row("releases", "releases", releases),
        *guarantee_rows(guarantee),
    ]
    record(
        f"I-MVU on an {ball.norm.value} ball, beta {mechanism.beta:g}",
        rows,
        json,
    )
