"""``quietbit certify``: measure what a design file promises, from its stored numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded, rounded_up
from quietbit.cli.options import takes, usual

if TYPE_CHECKING:
    from quietbit.design.certify import Certificate

__all__ = ["certificate_rows", "certify"]


@takes(usual("bound", True))
def certify(
    file: Annotated[Path, typer.Argument(help="A design file.")],
    bound: bool,
    json: JsonOption = False,
) -> int:
    """Measure a design file in exact arithmetic; exit code 1 if it does not meet its own spec.

    Example: quietbit certify table.json
    """
    design = quietbit.Design.load(file)
    certificate = quietbit.certify(design)
    record(f"{file}", certificate_rows(design, certificate, bound=bound, quiet=json), json)
    return 0 if certificate.meets_spec else 1


def certificate_rows(
    design: quietbit.Design, certificate: Certificate, *, bound: bool, quiet: bool
) -> list[Row]:
    """Return the rows of a certificate; ``bound`` adds how good any design could be (slow)."""
    rows = [
        Row("epsilon", "epsilon asked for", design.spec.epsilon),
        Row(
            "epsilon_upper",
            "epsilon measured",
            certificate.epsilon_upper,
            rounded_up(certificate.epsilon_upper, 12),
        ),
        Row(
            "meets_spec",
            "meets its spec",
            certificate.meets_spec,
            "yes" if certificate.meets_spec else "NO",
        ),
        Row(
            "bias_upper",
            "largest bias",
            certificate.bias_upper,
            rounded_up(certificate.bias_upper, 3),
        ),
        Row("mean_squared_error", "mean squared error", certificate.mean_squared_error),
        Row("objective", "objective", certificate.objective),
    ]
    if bound:
        from quietbit_lab.design.bound import gap_to, lower_bound

        with progress_bar("Bounding every possible alphabet from below", quiet=quiet):
            least = lower_bound(design)
            gap = gap_to(design)
        rows += [
            Row("lower_bound", "no alphabet beats", least, rounded(least, 8)),
            Row("gap", "gap to that bound", gap, f"{100 * gap:.3g} %"),
        ]
    values = design.alphabet.tolist()
    shown = ", ".join(rounded(value, 5) for value in values[:16]) + (
        ", ..." if len(values) > 16 else ""
    )
    return [
        *rows,
        Row("identity", "identity", design.identity()),
        Row("alphabet", "alphabet", values, shown),
    ]
