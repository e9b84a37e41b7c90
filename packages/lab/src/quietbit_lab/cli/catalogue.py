"""``quietbit catalogue``: the designs that ship with the package."""

from __future__ import annotations

from typing import Any

import quietbit
from quietbit.cli.console import JsonOption, column_table, show_json, shown
from quietbit.cli.options import option, takes
from quietbit_lab.cli.options import number_or_word

__all__ = ["catalogue"]


@takes(
    option("levels", int, "Only designs with this many input levels."),
    option("bits", int, "Only designs with this many bits."),
    option("epsilon", float, "Only designs with this epsilon."),
    option("bias", str, "Only designs with this bias.", metavar="exact|PENALTY"),
)
def catalogue(json: JsonOption = False, **given: Any) -> None:
    """List the designs that ship with the package; their names serve wherever a design file does.

    Example: quietbit catalogue --levels 2 --bits 1
    """
    from quietbit.design.solve import file_name  # here, so that --help need not wait for numpy

    wanted = {
        "input_levels": given["levels"],
        "output_bits": given["bits"],
        "epsilon": given["epsilon"],
    }
    wanted["bias"] = None if given["bias"] is None else number_or_word(given["bias"])
    rows = []
    for design in quietbit.catalogue():
        if any(value not in (None, getattr(design.spec, name)) for name, value in wanted.items()):
            continue
        measured = quietbit.certify(design)
        facts = {
            key: getattr(measured, key)
            for key in ("epsilon_upper", "bias_upper", "mean_squared_error")
        }
        rows.append(
            {
                "name": file_name(design.spec).removesuffix(".json"),
                **facts,
                "identity": design.identity(),
            }
        )
    if json:
        show_json(rows)
        return
    heads = ("name", "measured epsilon", "largest bias", "mean squared error", "identity")
    lines = [
        [shown(key, value) for key, value in {**row, "identity": row["identity"][:12]}.items()]
        for row in rows
    ]
    column_table(f"{len(rows)} designs", heads, lines)
