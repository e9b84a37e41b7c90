"""``quietbit demo``: the whole path once, from a spec to a privately trained model, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import quietbit
from quietbit.cli.console import JsonOption, column_table, progress_bar, rounded, rounded_up, show_json
from quietbit.cli.demo_training import COHORT, ROUNDS, TARGET, Trained, curves, train_all
from quietbit.cli.files import check_folder

if TYPE_CHECKING:
    from quietbit import Calibration, Certificate, Design

__all__ = ["demo"]

# (levels, bits, epsilon, privacy): a formula, a shipped design, and one that is solved the first time.
DESIGNS = ((2, 1, 1.0, "metric-l1"), (8, 3, 5.0, "metric-l1"), (6, 2, 3.0, "strict"))
FIGURE_LEVELS, FIGURE_BITS, FIGURE_EPSILON = (2, 4, 8), 3, 5.0
EPSILON, DELTA, RELEASES, DIMENSION = 3.0, 1e-5, 50, 100_000


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where designs and plots go.")] = Path("demo-output"),
    json: JsonOption = False,
) -> None:
    """Design and certify three mechanisms, then train privately on the embedded digits and compare.

    Example: quietbit demo --out demo-output
    """
    check_folder(out)
    specs = [quietbit.DesignSpec(*numbers) for numbers in DESIGNS]  # type: ignore[arg-type]
    certified: list[tuple[Design, Certificate]] = []
    with progress_bar("Designs", quiet=json, lines=True) as report:
        for place, spec in enumerate(specs):
            report(place / len(specs), f"{spec.input_levels} levels, {spec.outputs} symbols")
            design = quietbit.solve(spec)
            certificate = quietbit.certify(design)
            report((place + 0.5) / len(specs), "certifying, and bounding what any design could reach")
            certificate.lower_bound  # noqa: B018 - computed on first use, while the bar is shown
            certified.append((design, certificate))
    with progress_bar("Plots", quiet=json, lines=True) as report:
        report(0.0, "bias and variance, Figure 1 of the paper")
        row = [quietbit.solve(quietbit.DesignSpec(n, FIGURE_BITS, FIGURE_EPSILON)) for n in FIGURE_LEVELS]
        pictures = {"bias-variance.png": quietbit.plot_bias_variance(row)}
        for place, (design, _) in enumerate(certified):
            report((1 + place) / (1 + len(certified)), "probability tables")
            pictures[f"{_name(design)}.png"] = quietbit.plot_design(design)
    with progress_bar("Calibrating", quiet=json, lines=True) as report:
        report(0.0, "one bit per parameter")
        found = quietbit.calibrate(
            "imvu",
            ball=quietbit.Ball(quietbit.Norm.L2, 1.0, DIMENSION),
            epsilon=EPSILON,
            delta=DELTA,
            adjacency=quietbit.Adjacency.REPLACE_ONE,
            releases=RELEASES,
        )
        report(0.5, "one private update of 100,000 parameters")
        size = len(quietbit.Uplink(found.mechanism).send(_update()))
    with progress_bar("Training", quiet=json, lines=True) as report:
        trained = train_all(report)
    title = f"digits, {ROUNDS} rounds of {COHORT} clients, each epsilon <= {TARGET:g} at delta = {DELTA:g} (zero-out)"
    pictures["training.png"] = quietbit.plot_training(curves(trained), title)
    saved = [design.save(out / f"{_name(design)}.json") for design, _ in certified]
    saved += [quietbit.save_figure(picture, out / name) for name, picture in pictures.items()]
    _close(certified, found, size, trained, saved, json)


def _name(design: Design) -> str:
    spec = design.spec
    return f"{spec.privacy}_levels-{spec.input_levels}_bits-{spec.output_bits}_eps-{spec.epsilon:g}"


def _update() -> Any:
    """Something of the size of a model's update; what it says does not matter here."""
    import numpy as np  # imported here, so that --help need not wait for numpy

    return np.linspace(-1.0, 1.0, DIMENSION, dtype=np.float32)


def _close(
    certified: list[tuple[Design, Certificate]],
    found: Calibration,
    size: int,
    trained: list[Trained],
    saved: list[Path],
    as_json: bool,
) -> None:
    """The closing table, the guarantee in words, and where everything is."""
    if as_json:
        show_json(
            {
                "designs": [
                    {
                        "name": _name(design),
                        "epsilon_upper": certificate.epsilon_upper,
                        "bias_upper": certificate.bias_upper,
                        "mean_squared_error": certificate.mean_squared_error,
                        "lower_bound": certificate.lower_bound,
                        "gap": certificate.gap,
                        "identity": design.identity(),
                    }
                    for design, certificate in certified
                ],
                "calibrated": {
                    "bits_per_parameter": found.mechanism.bits,
                    "parameters": DIMENSION,
                    "payload_bytes": size,
                    "squared_error": found.squared_error,
                    "gaussian_squared_error": found.gaussian_squared_error,
                    "epsilon_upper": found.guarantee.epsilon_upper,
                    "guarantee": found.guarantee.sentence(),
                },
                "training": [one.facts() for one in trained],
                "saved": [str(path) for path in saved],
            }
        )
        return
    lines = [
        (
            _name(design),
            rounded_up(certificate.epsilon_upper, 9),
            rounded_up(certificate.bias_upper, 2),
            rounded(certificate.mean_squared_error),
            rounded(certificate.lower_bound),
            f"{100 * certificate.gap:.2g} %",
        )
        for design, certificate in certified
    ]
    heads = ("design", "measured epsilon", "largest bias", "mean squared error", "no alphabet beats", "gap")
    column_table("Designs, certified from their stored numbers", heads, lines)
    print(f"One bit per parameter, {RELEASES} releases of {DIMENSION:,} parameters in an L2 ball:")
    print(f"  {found.guarantee.sentence()}")
    ratio = found.squared_error / found.gaussian_squared_error
    print(f"  Squared error of a coordinate near zero: {ratio:.4f} times that of 32-bit Gaussian noise.")
    print(f"  One update leaves the client as {size:,} bytes; as 32-bit floats it is {4 * DIMENSION:,}.")
    facts = [one.facts() for one in trained]
    results = [
        (
            one["label"],
            f"{100 * one['accuracy']:.1f} %",
            rounded_up(one["epsilon_upper"], 4),
            f"{one['bytes_per_client_and_round']:,}",
        )
        for one in facts
    ]
    columns = ("digits, local differential privacy", "test accuracy", "epsilon", "bytes per client and round")
    column_table("Private federated training", columns, results)
    print(f"  {facts[-1]['guarantee']}")
    print("  One run each, with fresh randomness: repeat it and accuracies move by several points.")
    print("\nLook at:")
    for path in saved:
        print(f"  {path}")
