from __future__ import annotations

from pathlib import Path

import pytest

from quietbit.mechanism.ball import Ball, Norm
from quietbit.target import Target
from quietbit_lab.plot.figure import save_figure
from quietbit_lab.plot.secure_sums import plot_secure_aggregation

pytest.importorskip("matplotlib", reason="needs quietbit-lab")


def test_error_and_bits_against_the_number_of_clients(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("quietbit_lab.plot.secure_sums.COHORTS", (20, 200))
    given = {"ball": Ball(Norm.L2, 4000), "target": Target(1.0, 1e-5, "zero-out", releases=5)}
    told: list[float] = []
    figure = plot_secure_aggregation(**given, report=lambda fraction, _: told.append(fraction))
    assert told == [0.0, 0.5]
    left, right = figure.axes
    drawn = {line.get_label(): line for line in left.lines}
    assert set(drawn) == {
        "one bit, secure sum",
        "ideal distributed Gaussian",
        "Skellam, secure sum",
        "one bit, local",
    }
    ours, ideal = (
        drawn[name].get_ydata() for name in ("one bit, secure sum", "ideal distributed Gaussian")
    )
    assert all(1 < a / b < 1.35 for a, b in zip(ours, ideal, strict=True))
    assert max(right.lines[0].get_ydata()) <= 32
    assert save_figure(figure, tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
