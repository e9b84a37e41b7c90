"""The whole demo, smaller: every figure that it prints is that of a run that it kept."""

import json

import pytest

import quietbit
from cli.kit import shell
from quietbit_lab.cli import demo_training
from quietbit_lab.cli.demo import DESIGNS

# At least eight standard deviations below the mean of many runs, whatever the words.
LEAST = {"Secure sums": 0.65, "Trusted server": 0.70, "Vector": 0.25}


@pytest.mark.slow
@pytest.mark.parametrize(
    "epsilons", [(4.0,), pytest.param((1.0, 2.0, 4.0), marks=pytest.mark.long)]
)
def test_leaves_a_report_runs_designs_and_pictures(capsys, tmp_path, monkeypatch, epsilons):
    """One seed instead of three, and 2,000 clients instead of 10,000."""
    small = tuple(one._replace(clients=min(one.clients, 2_000)) for one in demo_training.LINES)
    for name, value in {"SEEDS": 1, "LINES": small, "EPSILONS": epsilons}.items():
        monkeypatch.setattr(demo_training, name, value)
    monkeypatch.setattr("quietbit_lab.cli.demo.LINES", small)
    monkeypatch.setattr("quietbit_lab.cli.demo.FIGURE_LEVELS", (2, 8))  # what is shipped
    monkeypatch.setattr("quietbit_lab.cli.demo.DESIGNS", DESIGNS[:1])
    out = tmp_path / "out"
    result = shell(capsys, "demo --out", out)
    assert result.code == 0
    trainings = 3 * len(epsilons) + 1
    assert f"Training: {trainings} of {trainings}: No privacy, 1,437 clients" in result.err
    assert result.out.strip().endswith(str(out / "report.html"))
    for words in ("the neighbour's update is the zero vector", "secure-aggregation trust"):
        assert words in result.out
    designs = sorted(out.glob("*.json"))
    assert len(designs) == 1
    for path in designs:
        assert quietbit.certify(quietbit.Design.load(path)).meets_spec
        assert path.with_suffix(".png").exists()
    for name in ("bias-variance.png", "training.png", "runs/results.jsonl"):
        assert (out / name).exists()
        assert str(out / name) in result.out
    assert (
        shell(capsys, f"report {out}/runs --json --out", out / "p.html").json["runs"] == trainings
    )
    assert shell(capsys, f"figure demo --runs {out}/runs --out", out / "f.svg").code == 0

    kept = [json.loads(line) for line in (out / "runs" / "results.jsonl").read_text().splitlines()]
    monkeypatch.setattr("quietbit_lab.cli.demo.train_all", lambda _: kept)
    monkeypatch.setattr("quietbit_lab.cli.demo._pictures", lambda *_: {})
    facts = shell(capsys, "demo --json --out", tmp_path / "again").json
    assert facts["calibrated"]["epsilon_upper"] <= 3
    assert facts["calibrated"]["payload_bytes"] == 100_000 // 8 + 64  # one bit each, and a header
    assert (tmp_path / "again" / "report.html").read_bytes() == (out / "report.html").read_bytes()
    trained = {one["label"].split(",")[0]: one for one in facts["training"]}
    assert [one["bytes_per_client_and_round"] for one in trained.values()] == [80, 765, 2600, 2600]
    for name, least in LEAST.items():
        assert trained[name]["accuracy"] > least
        assert 3.9 < trained[name]["epsilon_upper"] <= 4
        assert "zero-out adjacency" in trained[name]["guarantee"]
        assert f"{100 * trained[name]['accuracy']:.1f} %" in result.out


def test_the_closing_table_is_made_from_the_records():
    def record(accuracy, epsilon):
        guarantee = {"epsilon_upper": epsilon, "sentence": f"epsilon <= {epsilon}"}
        scores = enumerate((0.1, accuracy), start=1)
        return {
            "points": [{"round": number, "accuracy": score} for number, score in scores],
            "guarantee": guarantee if epsilon else None,
            "bytes_per_client": 100,
            "settings": {"epsilon": epsilon},
        }

    target = demo_training.TARGET
    trained = [
        {"label": line.label, "record": record(accuracy, aim)}
        for line in demo_training.LINES
        for aim in ((None,) if line.mechanism == "none" else (1.0, target))
        for accuracy in (0.5, 0.7)
    ]
    facts = demo_training.headline(trained)
    assert [(one["seeds"], one["bytes_per_client"]) for one in facts] == [
        (2, 100 * line.epochs) for line in demo_training.LINES
    ]
    assert facts[0]["accuracy"] == pytest.approx(0.6)
    assert facts[0]["deviation"] == pytest.approx(0.02**0.5)
    assert (facts[0]["epsilon_upper"], facts[3]["guarantee"]) == (target, None)
    curve = demo_training.curves(trained)["Vector, 10,000 clients"]
    assert curve == [(1, 0.1), (2, pytest.approx(0.6))]
