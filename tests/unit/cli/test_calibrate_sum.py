import pytest

import quietbit
from unit.cli.kit import assert_refused, shell

TARGET = ("--epsilon", 1, "--delta", 1e-5, "--adjacency", "zero-out")
SECURE = ("calibrate", "--trust", "secure-aggregation", *TARGET, "--dimension", 5000)


def test_the_issue_example(capsys, tmp_path):
    out = tmp_path / "d.json"
    words = (*SECURE, "--clients", 300, "--releases", 20, "--out", out)
    result = shell(capsys, *words)
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    for word in ("secure-aggregation trust", "modulus of the masks", "ideal distributed Gaussian", "Skellam", "local"):
        assert word in text
    facts = shell(capsys, *words, "--json").json
    assert 0.999 <= facts["epsilon_upper"] <= 1
    assert (facts["wire_bits"], facts["min_honest_clients"], facts["trust"]) == (9, 300, "secure-aggregation")
    assert [line["bits"] for line in facts["comparison"]] == [9, 32, 16, 1, 1]
    assert facts["comparison"][0]["epsilon_upper"] == facts["epsilon_upper"]
    assert quietbit.Design.load(out).identity() == facts["identity"]


def test_honest_clients_bits_and_secret_cohorts(capsys):
    usual = shell(capsys, *SECURE, "--clients", 200, "--json").json
    fewer = shell(capsys, *SECURE, "--clients", 200, "--min-honest-clients", 100, "--json").json
    assert fewer["squared_error"] > 1.5 * usual["squared_error"]
    wide = shell(capsys, *SECURE, "--clients", 200, "--bits", 2, "--json").json
    assert (usual["wire_bits"], wide["wire_bits"]) == (8, 10)
    secret = shell(capsys, *SECURE, "--clients", 200, "--secret-cohort", "--sampling-rate", 0.1, "--json").json
    assert secret["population"] == 2000
    assert secret["squared_error"] < usual["squared_error"]


def test_a_plot(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    monkeypatch.setattr("quietbit.plot.secure_sums.COHORTS", (20, 100))
    result = shell(capsys, *SECURE, "--clients", 100, "--plot", tmp_path / "sums.svg")
    assert result.code == 0
    assert "<svg" in (tmp_path / "sums.svg").read_text(encoding="utf-8")[:500]


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        ((*SECURE,), "clients must be given"),
        ((*SECURE, "--clients", 1), "clients must be"),
        ((*SECURE, "--clients", 10, "--min-honest-clients", 11), "--min-honest-clients"),
        ((*SECURE, "--clients", 10, "--mechanism", "skellam"), "imvu"),
        ((*SECURE, "--clients", 10, "--beta", 2), "beta must be left out"),
        ((*SECURE, "--clients", 10, "--bits", 5), "bits"),
        ((*SECURE, "--clients", 10, "--norm", "l1"), "l2 for secure aggregation"),
        ((*SECURE, "--clients", 10, "--unit", "sample"), "unit"),
        ((*SECURE, "--clients", 10, "--sampling-rate", 0.1), "learns who took part"),
        ((*SECURE, "--clients", 10, "--secret-cohort"), "must be given with --secret-cohort"),
        (
            (*SECURE, "--clients", 10, "--secret-cohort", "--sampling-rate", 0.1, "--min-honest-clients", 9),
            "--min-honest-clients",
        ),
        ((*SECURE, "--clients", 10, "--plot", "sums.txt"), "figure"),
        (("calibrate", "--mechanism", "imvu", *TARGET, "--clients", 10), "clients must be left out for local trust"),
        (("calibrate", "--mechanism", "imvu", *TARGET, "--sampling-rate", 0.1), "amplifies nothing"),
        (("calibrate", *TARGET), "mechanism must be given"),
    ],
)
def test_refusals(capsys, words, mention):
    assert_refused(shell(capsys, *words), mention)
