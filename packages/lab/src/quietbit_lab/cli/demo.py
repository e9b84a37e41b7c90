"""``quietbit demo``: the whole path once, from a spec to privately trained models and a report."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import quietbit
from quietbit.cli.console import (
    JsonOption,
    column_table,
    progress_bar,
    rounded,
    rounded_up,
    show_json,
)
from quietbit.errors import require_module
from quietbit_lab.cli.demo_training import DELTA, LINES, TARGET, curves, headline, train_all
from quietbit_lab.cli.options import check_folder

if TYPE_CHECKING:
    from quietbit import Design
    from quietbit.design.certify import Certificate

__all__ = ["demo"]

# (levels, bits, epsilon, privacy): a formula, a shipped design, and one that is solved the first
# time.
DESIGNS = ((2, 1, 1.0, "metric-l1"), (8, 3, 5.0, "metric-l1"), (6, 2, 3.0, "strict"))
FIGURE_LEVELS = (2, 4, 8)
FIGURE_BITS = 3
FIGURE_EPSILON = 5.0
EPSILON = 3.0
RELEASES = 50
DIMENSION = 100_000
CLOSING = """
Each line is a federation. A server that sees every update needs thousands of clients, and gets 80
bytes from each; the 10,000 here are simulated and hold one of the 1,437 training images each. One
that sees sums alone needs a tenth of them, and is nearly as good as a server that is trusted to add
the noise. 360 images test each model, so accuracies move by a few points from one demo to the next.
The bytes of sums are those of the masked codes; keys and shares come on top
(docs/how-to/secure-aggregation.md)."""


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the report, runs, designs and plots go.")
    ] = Path("demo-output"),
    json: JsonOption = False,
) -> None:
    """Design and certify mechanisms, train on digits under three trust models, and write a report.

    Example: quietbit demo --out demo-output
    """
    from quietbit_lab.plot.figure import save_figure
    from quietbit_lab.report.plots import plot_training

    require_module("matplotlib", "lab")  # before anything is computed
    check_folder(out)
    certified = _designs(json)
    pictures = _pictures([design for design, _ in certified], json)
    with progress_bar("Calibrating", quiet=json, lines=True) as report:
        report(0.0, "one bit per parameter")
        ball = quietbit.Ball(quietbit.Norm.L2, DIMENSION)
        calibrated = quietbit.calibrate(
            "imvu",
            ball=ball,
            epsilon=EPSILON,
            delta=DELTA,
            adjacency="replace-one",
            releases=RELEASES,
        )
        report(0.5, "one private update of 100,000 parameters")
        size = len(quietbit.Uplink(calibrated.mechanism).send(_update()))
    with progress_bar("Training", quiet=json, lines=True) as report:
        trained = train_all(report)
    # Nothing is written before everything is there: an interrupt leaves the folder as it was.
    title = f"digits, each client epsilon <= {TARGET:g} at delta = {DELTA:g} (zero-out)"
    pictures["training.png"] = plot_training(
        curves(trained), title, {line.label: line.mechanism for line in LINES}
    )
    saved = [_report(trained, out / "report.html"), _runs(trained, out / "runs" / "results.jsonl")]
    saved += [save_figure(picture, out / name) for name, picture in pictures.items()]
    saved += [design.save(out / f"{_name(design)}.json") for design, _ in certified]
    facts: dict[str, Any] = {
        "designs": [_design_facts(design, certificate) for design, certificate in certified],
        "calibrated": {
            "bits_per_parameter": calibrated.mechanism.layout.bits,
            "parameters": DIMENSION,
            "payload_bytes": size,
            "squared_error": calibrated.squared_error,
            "gaussian_squared_error": calibrated.gaussian_squared_error,
            "epsilon_upper": calibrated.guarantee.epsilon_upper,
            "guarantee": calibrated.guarantee.sentence(),
        },
        "training": headline(trained),
        "report": str(saved[0]),
        "saved": [str(path) for path in saved],
    }
    if json:
        show_json(facts)
    else:
        _close(**facts)


def _designs(quiet: bool) -> list[tuple[Design, Certificate]]:
    from quietbit_lab.design.bound import lower_bound
    from quietbit_lab.design.search import solve

    certified: list[tuple[Design, Certificate]] = []
    with progress_bar("Designs", quiet=quiet, lines=True) as report:
        for place, numbers in enumerate(DESIGNS):
            spec = quietbit.DesignSpec(*numbers)  # type: ignore[arg-type]
            report(place / len(DESIGNS), f"{spec.input_levels} levels, {spec.outputs} symbols")
            design = solve(spec)
            certificate = quietbit.certify(design)
            report(
                (place + 0.5) / len(DESIGNS), "certifying, and bounding what any design could reach"
            )
            lower_bound(design)  # computed once, while the bar is shown
            certified.append((design, certificate))
    return certified


def _pictures(designs: list[Design], quiet: bool) -> dict[str, Any]:
    from quietbit_lab.design.search import solve
    from quietbit_lab.plot.design import plot_design
    from quietbit_lab.report.bias_variance import plot_bias_variance

    with progress_bar("Plots", quiet=quiet, lines=True) as report:
        report(0.0, "bias and variance, Figure 1 of the paper")
        row = [solve(quietbit.DesignSpec(n, FIGURE_BITS, FIGURE_EPSILON)) for n in FIGURE_LEVELS]
        report(0.5, "probability tables")
        tables = {f"{_name(design)}.png": plot_design(design) for design in designs}
        return {"bias-variance.png": plot_bias_variance(row), **tables}


def _report(trained: list[dict[str, Any]], path: Path) -> Path:
    from quietbit_lab.report.page import render_page, save_page
    from quietbit_lab.report.runs import PlacedRun

    runs = [PlacedRun(line["label"], line["record"]) for line in trained]
    return save_page(render_page(runs, "Private training on handwritten digits"), path)


def _runs(trained: list[dict[str, Any]], path: Path) -> Path:
    """Write the runs as a sweep's results, which ``quietbit report`` and ``figure`` read."""
    from quietbit._files import write_whole

    lines = [
        dumps({"sweep": "demo", **line}, separators=(",", ":"), allow_nan=False) + "\n"
        for line in trained
    ]
    return write_whole(path, lambda file: file.write("".join(lines).encode()))


def _name(design: Design) -> str:
    spec = design.spec
    return f"{spec.privacy}_levels-{spec.input_levels}_bits-{spec.output_bits}_eps-{spec.epsilon:g}"


def _update() -> Any:
    """Something of the size of a model's update; what it says does not matter here."""
    import numpy as np  # imported here, so that --help need not wait for numpy

    return np.linspace(-1.0, 1.0, DIMENSION, dtype=np.float32)


def _design_facts(design: Design, certificate: Certificate) -> dict[str, Any]:
    from quietbit_lab.design.bound import gap_to, lower_bound

    measured = ("epsilon_upper", "bias_upper", "mean_squared_error")
    facts = {name: getattr(certificate, name) for name in measured}
    facts |= {"lower_bound": lower_bound(design), "gap": gap_to(design)}
    return {"name": _name(design), **facts, "identity": design.identity()}


def _close(
    designs: list[dict[str, Any]],
    calibrated: dict[str, Any],
    training: list[dict[str, Any]],
    report: str,
    saved: list[str],
) -> None:
    """Print the closing tables, the guarantees in words, and where everything is."""
    lines = [
        (
            facts["name"],
            rounded_up(facts["epsilon_upper"], 9),
            rounded_up(facts["bias_upper"], 2),
            rounded(facts["mean_squared_error"]),
            f"{100 * facts['gap']:.2g} %",
        )
        for facts in designs
    ]
    heads = ("design", "measured epsilon", "largest bias", "mean squared error", "gap to best")
    column_table("Designs, certified from their stored numbers", heads, lines)
    print(f"One bit per parameter, {RELEASES} releases of {DIMENSION:,} parameters in an L2 ball:")
    print(f"  {calibrated['guarantee']}")
    ratio = calibrated["squared_error"] / calibrated["gaussian_squared_error"]
    size = calibrated["payload_bytes"]
    print(f"  Squared error near zero: {ratio:.4f} times that of 32-bit Gaussian noise.")
    print(f"  One update is sent as {size:,} bytes; as 32-bit floats it has {4 * DIMENSION:,}.\n")
    _training_table(training)
    print("\nOther files:", *saved[1:], sep="\n  ")
    print(f"\nOpen the report in a browser: {report}")


def _accuracy(facts: dict[str, Any]) -> str:
    if facts["seeds"] == 1:
        return f"{100 * facts['accuracy']:.1f} %"
    return f"{100 * facts['accuracy']:.1f} ± {100 * facts['deviation']:.1f} %"


def _training_table(facts: list[dict[str, Any]]) -> None:
    lines = [
        (
            line["label"],
            _accuracy(line),
            rounded_up(line["epsilon_upper"], 4) if line["epsilon_upper"] is not None else "none",
            str(line["releases"]),
            f"{line['bytes_per_client_and_round']:,}",
            f"{line['bytes_per_client']:,}",
        )
        for line in facts
    ]
    heads = ("mechanism", "accuracy", "epsilon", "releases", "bytes each", "in all")
    column_table("Private federated training on digits", heads, lines)
    for sentence in dict.fromkeys(line["guarantee"] for line in facts if line["guarantee"]):
        named = [line["label"] for line in facts if line["guarantee"] == sentence]
        print(f"{', '.join(named)}: {sentence}")
    print(CLOSING)
