import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import quietbit
from cli.kit import assert_refused, shell
from quietbit_lab.cli import demo_training
from quietbit_lab.cli.demo import DESIGNS


@pytest.mark.slow
@pytest.mark.parametrize(
    "epsilons", [(4.0,), pytest.param((1.0, 2.0, 4.0), marks=pytest.mark.long)]
)
def test_leaves_a_report_runs_designs_and_pictures(capsys, tmp_path, monkeypatch, epsilons):
    """The whole demo, with one seed instead of three, and 2,000 clients instead of 10,000."""
    monkeypatch.setattr(demo_training, "SEEDS", 1)
    small = [line._replace(clients=min(line.clients, 2_000)) for line in demo_training.LINES]
    monkeypatch.setattr(demo_training, "LINES", tuple(small))
    monkeypatch.setattr("quietbit_lab.cli.demo.LINES", tuple(small))
    monkeypatch.setattr(demo_training, "EPSILONS", epsilons)
    monkeypatch.setattr("quietbit_lab.cli.demo.FIGURE_LEVELS", (2, 8))  # what is shipped
    monkeypatch.setattr("quietbit_lab.cli.demo.DESIGNS", DESIGNS[:2])
    trainings = 3 * len(epsilons) + 1
    out = tmp_path / "out"
    result = shell(capsys, "demo", "--out", out)
    assert result.code == 0
    assert f"Training: {trainings} of {trainings}: No privacy, 1,437 clients" in result.err
    assert result.out.strip().endswith(str(out / "report.html"))
    assert "zero-out adjacency: the neighbour's update is the zero vector" in result.out
    row = r"(Secure sums|Trusted server|Vector), \S+ clients +(\S+) % +(\S+) +(\S+) +(\S+)"
    lines = {match[0]: match for match in re.findall(row, result.out)}
    # At least eight standard deviations below the mean of many runs, whatever the words.
    for name, least in {"Vector": 25, "Secure sums": 65, "Trusted server": 70}.items():
        _, accuracy, epsilon, _, _ = lines[name]
        assert 3.9 < float(epsilon) <= 4
        assert float(accuracy) > least
    assert [line[3:] for line in lines.values()] == [("1", "80"), ("3", "765"), ("3", "2,600")]
    assert "secure-aggregation trust" in result.out
    assert "local trust" in result.out
    designs = sorted(out.glob("*.json"))
    assert len(designs) == 2
    for path in designs:
        assert quietbit.certify(quietbit.Design.load(path)).meets_spec
        assert path.with_suffix(".png").exists()
    for name in ("bias-variance.png", "training.png", "runs/results.jsonl"):
        assert (out / name).exists()
        assert str(out / name) in result.out
    kept = [json.loads(line) for line in (out / "runs" / "results.jsonl").read_text().splitlines()]
    assert len({line["job"] for line in kept}) == len(kept)
    monkeypatch.setattr("quietbit_lab.cli.demo.train_all", lambda _: kept)
    monkeypatch.setattr("quietbit_lab.cli.demo._pictures", lambda *_: {})
    facts = shell(capsys, "demo", "--out", tmp_path / "again", "--json").json
    assert facts["report"] == str(tmp_path / "again" / "report.html")
    assert facts["calibrated"]["epsilon_upper"] <= 3
    assert facts["calibrated"]["payload_bytes"] == 100_000 // 8 + 64  # one bit each, and a header
    assert [one["bytes_per_client_and_round"] for one in facts["training"]] == [80, 765, 2600, 2600]
    assert all("zero-out adjacency" in one["guarantee"] for one in facts["training"][:3])
    assert (tmp_path / "again" / "report.html").read_bytes() == (out / "report.html").read_bytes()
    again = shell(capsys, "report", out / "runs", "--out", tmp_path / "again.html", "--json")
    assert again.json["runs"] == trainings
    figure = shell(
        capsys, "figure", "demo", "--runs", out / "runs", "--out", tmp_path / "f.svg", "--json"
    )
    assert figure.code == 0


def test_the_closing_table_is_made_from_the_records():
    def record(accuracy, epsilon):
        guarantee = (
            {"epsilon_upper": epsilon, "sentence": f"epsilon <= {epsilon}"} if epsilon else None
        )
        points = [{"round": 1, "accuracy": 0.1}, {"round": 2, "accuracy": accuracy}]
        return {
            "points": points,
            "guarantee": guarantee,
            "bytes_per_client": 100,
            "settings": {"epsilon": epsilon},
        }

    target = demo_training.TARGET
    trained = [
        {"label": label, "record": record(accuracy, aim)}
        for label, mechanism, *_ in demo_training.LINES
        for aim in ((1.0, target) if mechanism != "none" else (None,))
        for accuracy in (0.5, 0.7)
    ]
    facts = demo_training.headline(trained)
    assert [one["seeds"] for one in facts] == [2] * 4
    assert facts[0]["accuracy"] == pytest.approx(0.6)
    assert facts[0]["deviation"] == pytest.approx(0.02**0.5)
    assert facts[0]["epsilon_upper"] == target
    assert [one["bytes_per_client"] for one in facts] == [100, 300, 300, 800]
    assert facts[3]["guarantee"] is None
    assert demo_training.curves(trained)["Vector, 10,000 clients"] == [
        (1, 0.1),
        (2, pytest.approx(0.6)),
    ]


def test_an_unwritable_folder_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("x")
    assert_refused(shell(capsys, "demo", "--out", tmp_path / "file" / "out"), "Cannot write")


@pytest.mark.long  # a training is interrupted in test_train.py
def test_control_c_leaves_nothing_half_written(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "quietbit", "demo", "--out", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    for line in process.stderr:
        if line.startswith("Training: 2 of"):
            break
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.strip().splitlines()[-1] == "Interrupted: the command stopped before it was done."
    assert list((tmp_path / "out").iterdir()) == []
