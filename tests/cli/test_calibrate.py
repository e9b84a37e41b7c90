import pytest

import quietbit
from cli.kit import EIGHT_LEVELS, assert_refused, shell
from quietbit.design.profile import Profile

TWO_LEVELS = "metric-l1_levels-2_bits-1_eps-3_exact"
TARGET = ("--epsilon", 3, "--delta", 1e-5, "--adjacency", "replace-one")
SUM_TARGET = ("--epsilon", 1, "--delta", 1e-5, "--adjacency", "zero-out")
SECURE = ("calibrate", "--trust", "secure-aggregation", *SUM_TARGET, "--dimension", 5000)


def test_the_issue_example(capsys, tmp_path):
    out = tmp_path / "d.json"
    words = ("calibrate", "--mechanism", "imvu", "--bits", 1, *TARGET, "--releases", 50)
    result = shell(capsys, *words, "--out", out)
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    for word in (
        "replace-one adjacency",
        "bits per parameter",
        "Gaussian noise's",
        "beta",
        "local trust",
    ):
        assert word in text
    facts = shell(capsys, *words, "--json").json
    assert 3 * (1 - 1e-4) <= facts["epsilon_upper"] <= 3
    assert facts["bits_per_parameter"] == 1
    assert quietbit.Design.load(out).identity() == facts["identity"]


@pytest.mark.parametrize("name", ["mvu", "gaussian", "sign", "skellam"])
def test_other_mechanisms_on_l2(capsys, name):
    words = (
        "calibrate",
        "--mechanism",
        name,
        "--epsilon",
        10,
        "--delta",
        1e-5,
        "--adjacency",
        "zero-out",
    )
    facts = shell(capsys, *words, "--dimension", 64, "--json").json
    assert 10 * (1 - 1e-4) <= facts["epsilon_upper"] <= 10
    assert facts["squared_error"] > 0


def test_laplace_at_delta_zero_has_no_gaussian_beside_it(capsys):
    words = ("calibrate", "--mechanism", "laplace", "--norm", "l1", "--epsilon", 1, "--delta", 0)
    facts = shell(capsys, *words, "--adjacency", "zero-out", "--json").json
    assert facts["scale_multiplier"] == pytest.approx(1, rel=1e-4)
    assert facts["gaussian_squared_error"] is None
    assert shell(capsys, *words, "--adjacency", "zero-out").code == 0


def test_batches_drawn_in_secret_are_priced_so(capsys):
    words = (
        "calibrate",
        "--mechanism",
        "gaussian",
        "--epsilon",
        3,
        "--delta",
        1e-5,
        "--adjacency",
        "zero-out",
    )
    words += ("--dimension", 64, "--releases", 50, "--samples", 5000, "--json")
    drawn, whole = (shell(capsys, *words, *more).json for more in (("--sampling-rate", 0.1), ()))
    assert drawn["unit"] == "sample"
    assert 3 * (1 - 1e-4) <= drawn["epsilon_upper"] <= 3
    assert (drawn["expected"], drawn["rate"]) == (500, 0.1)
    assert (
        drawn["noise_multiplier"] * 500 < whole["noise_multiplier"] * 5000
    )  # less noise on the sum
    steps = shell(
        capsys, *words, "--sampling-rate", 0.1, "--local-steps", 5, "--local-rate", 0.1
    ).json
    assert steps["steps"] == 5
    assert steps["noise_multiplier"] > 1.5 * drawn["noise_multiplier"]
    assert_refused(shell(capsys, *words, "--sampling-rate", 0.1, "--local-steps", 5), "local")


def test_beta_is_calibrated_for_a_given_design(capsys):
    facts = shell(
        capsys, "calibrate", "--mechanism", "imvu", "--design", TWO_LEVELS, *TARGET, "--json"
    ).json
    assert facts["beta"] != 1.0
    assert (facts["design"]["input_levels"], facts["design"]["epsilon"]) == (2, 3.0)


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        (("--mechanism", "magic", *TARGET), "magic"),
        (("--mechanism", "imvu", *TARGET, "--releases", "0"), "releases"),
        (("--mechanism", "imvu", *TARGET, "--delta", "0"), "delta"),
        (("--mechanism", "imvu", *TARGET, "--delta", "1"), "delta"),
        (("--mechanism", "imvu", *TARGET, "--epsilon", "nan"), "nan"),
        (("--mechanism", "imvu", *TARGET, "--epsilon", "-2"), "-2"),
        (("--mechanism", "imvu", *TARGET, "--adjacency", "none"), "none"),
        (("--mechanism", "imvu", *TARGET, "--bits", "20"), "20"),
        (("--mechanism", "imvu", *TARGET, "--levels", "1"), "levels"),
        (("--mechanism", "imvu", *TARGET, "--decoder", "magic"), "magic"),
        (("--mechanism", "imvu", *TARGET, "--design", "nowhere"), "nowhere"),
        (("--mechanism", "laplace", *TARGET), "l1"),
        (("--mechanism", "gaussian", *TARGET, "--design", EIGHT_LEVELS), "design"),
    ],
)
def test_bad_input_is_one_sentence(capsys, words, mention):
    assert_refused(shell(capsys, "calibrate", *words), mention)


def test_only_designs_can_be_saved(capsys, tmp_path):
    words = ("calibrate", "--mechanism", "gaussian", *TARGET, "--out", tmp_path / "d.json")
    assert_refused(shell(capsys, *words), "out")
    words = ("calibrate", "--mechanism", "imvu", *TARGET, "--out", tmp_path / "no" / "d.json")
    assert_refused(shell(capsys, *words), "Cannot write")
    assert list(tmp_path.iterdir()) == []


def test_the_vector_mechanism_says_profile_rows_and_bytes(capsys, tmp_path):
    words = (
        "calibrate",
        "--mechanism",
        "vmvu",
        "--epsilon",
        "4",
        "--adjacency",
        "replace-one",
        "--dimension",
        "100000",
    )
    result = shell(
        capsys,
        *words,
        "--delta",
        "0",
        "--coordinates",
        "512",
        "--out",
        tmp_path / "p.json",
        "--json",
    )
    assert result.code == 0
    assert result.json["payload_bytes"] == 80
    assert result.json["keep"] == 512
    assert result.json["profile"]["levels"] == 2
    assert result.json["epsilon_upper"] <= 4
    assert result.json["squared_error"] < 1.01 * 0.435
    assert Profile.load(tmp_path / "p.json").identity() == result.json["identity"]
    shown = shell(capsys, *words, "--delta", "1e-5").out
    assert "2 levels" in shown
    assert_refused(shell(capsys, *words, "--delta", "0", "--coordinates", "500"), "power of two")
    assert_refused(shell(capsys, *words, "--delta", "0", "--bits", "2"), "bits must be left out")


def test_sums_of_the_issue_example(capsys, tmp_path):
    out = tmp_path / "d.json"
    words = (*SECURE, "--clients", 300, "--releases", 20, "--out", out)
    result = shell(capsys, *words)
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    for word in ("secure-aggregation trust", "modulus of the masks"):
        assert word in text
    facts = shell(capsys, *words, "--json").json
    assert 0.999 <= facts["epsilon_upper"] <= 1
    assert (facts["wire_bits"], facts["min_honest_clients"], facts["trust"]) == (
        9,
        300,
        "secure-aggregation",
    )
    assert quietbit.Design.load(out).identity() == facts["identity"]


def test_fewer_honest_clients_cost_accuracy(capsys):
    usual = shell(capsys, *SECURE, "--clients", 200, "--json").json
    fewer = shell(capsys, *SECURE, "--clients", 200, "--min-honest-clients", 100, "--json").json
    assert fewer["squared_error"] > 1.5 * usual["squared_error"]
    assert usual["wire_bits"] == fewer["wire_bits"] == 8


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        ((*SECURE,), "clients must be given"),
        ((*SECURE, "--clients", 1), "clients must be"),
        ((*SECURE, "--clients", 10, "--min-honest-clients", 11), "--min-honest-clients"),
        ((*SECURE, "--clients", 10, "--mechanism", "skellam"), "imvu"),
        ((*SECURE, "--clients", 10, "--beta", 2), "beta must be left out"),
        ((*SECURE, "--clients", 10, "--bits", 2), "bits must be left out"),
        ((*SECURE, "--clients", 10, "--norm", "l1"), "l2 for secure aggregation"),
        ((*SECURE, "--clients", 10, "--unit", "sample"), "unit"),
        ((*SECURE, "--clients", 10, "--sampling-rate", 0.1), "--sampling-rate"),
        (
            ("calibrate", "--mechanism", "imvu", *SUM_TARGET, "--clients", 10),
            "clients must be left out for local trust",
        ),
        (
            ("calibrate", "--mechanism", "imvu", *SUM_TARGET, "--sampling-rate", 0.1),
            "samples must be given",
        ),
        (("calibrate", *SUM_TARGET), "mechanism must be given"),
    ],
)
def test_refusals_of_sums(capsys, words, mention):
    assert_refused(shell(capsys, *words), mention)
