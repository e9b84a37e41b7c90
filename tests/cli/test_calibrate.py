import pytest

import quietbit
from cli.kit import EIGHT_LEVELS, assert_refused, shell
from quietbit.design.profile import Profile

TWO_LEVELS = "metric-l1_levels-2_bits-1_eps-3_exact"
TARGET = "calibrate --epsilon 3 --delta 1e-5 --adjacency replace-one"
SUM_TARGET = "calibrate --epsilon 1 --delta 1e-5 --adjacency zero-out"
SECURE = f"{SUM_TARGET} --trust secure-aggregation --dimension 5000"
VECTOR = "calibrate --mechanism vmvu --epsilon 4 --adjacency replace-one --dimension 100000"


def test_the_issue_example(capsys, tmp_path):
    words = f"{TARGET} --mechanism imvu --bits 1 --releases 50"
    result = shell(capsys, words, "--out", tmp_path / "d.json")
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    for word in ("replace-one adjacency", "bits per parameter", "Gaussian noise's", "beta"):
        assert word in text
    facts = shell(capsys, f"{words} --json").json
    assert 3 * (1 - 1e-4) <= facts["epsilon_upper"] <= 3
    assert facts["bits_per_parameter"] == 1
    assert quietbit.Design.load(tmp_path / "d.json").identity() == facts["identity"]


def test_laplace_at_delta_zero_has_no_gaussian_beside_it(capsys):
    words = "calibrate --mechanism laplace --norm l1 --epsilon 1 --delta 0 --adjacency zero-out"
    facts = shell(capsys, f"{words} --json").json
    assert facts["scale_multiplier"] == pytest.approx(1, rel=1e-4)
    assert facts["gaussian_squared_error"] is None
    assert shell(capsys, words).code == 0


def test_batches_drawn_in_secret_are_priced_so(capsys):
    words = "calibrate --mechanism gaussian --epsilon 3 --delta 1e-5 --adjacency zero-out"
    words += " --dimension 64 --releases 50 --samples 5000 --json"
    drawn = shell(capsys, f"{words} --sampling-rate 0.1").json
    whole = shell(capsys, words).json
    assert drawn["unit"] == "sample"
    assert 3 * (1 - 1e-4) <= drawn["epsilon_upper"] <= 3
    assert (drawn["expected"], drawn["rate"]) == (500, 0.1)
    # Less noise on the sum.
    assert drawn["noise_multiplier"] * 500 < whole["noise_multiplier"] * 5000
    stepping = f"{words} --sampling-rate 0.1 --local-steps 5"
    steps = shell(capsys, f"{stepping} --local-rate 0.1").json
    assert steps["steps"] == 5
    assert steps["noise_multiplier"] > 1.5 * drawn["noise_multiplier"]
    assert_refused(shell(capsys, stepping), "local")


def test_beta_is_calibrated_for_a_given_design(capsys):
    facts = shell(capsys, f"{TARGET} --mechanism imvu --design {TWO_LEVELS} --json").json
    assert facts["beta"] != 1.0
    assert (facts["design"]["input_levels"], facts["design"]["epsilon"]) == (2, 3.0)


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        ("--mechanism magic", "magic"),
        ("--mechanism imvu --releases 0", "releases"),
        ("--mechanism imvu --delta 0", "delta"),
        ("--mechanism imvu --delta 1", "delta"),
        ("--mechanism imvu --epsilon nan", "nan"),
        ("--mechanism imvu --adjacency none", "none"),
        ("--mechanism imvu --bits 20", "20"),
        ("--mechanism imvu --levels 1", "levels"),
        ("--mechanism imvu --decoder magic", "magic"),
        ("--mechanism imvu --design nowhere", "nowhere"),
        ("--mechanism imvu --trust central", "local or secure-aggregation"),
        ("--mechanism imvu --clients 10", "clients must be left out for local trust"),
        ("--mechanism imvu --sampling-rate 0.1", "samples must be given"),
        ("--mechanism laplace", "l1"),
        (f"--mechanism gaussian --design {EIGHT_LEVELS}", "design"),
        ("", "mechanism must be given"),
    ],
)
def test_bad_input_is_one_sentence(capsys, words, mention):
    assert_refused(shell(capsys, f"{TARGET} {words}"), mention)


@pytest.mark.parametrize(
    ("mechanism", "name", "mention"),
    [("gaussian", "d.json", "out"), ("imvu", "no/d.json", "Cannot write")],
)
def test_only_designs_can_be_saved(capsys, tmp_path, mechanism, name, mention):
    words = f"{TARGET} --mechanism {mechanism}"
    assert_refused(shell(capsys, words, "--out", tmp_path / name), mention)
    assert list(tmp_path.iterdir()) == []


def test_the_vector_mechanism_says_profile_rows_and_bytes(capsys, tmp_path):
    pure = f"{VECTOR} --delta 0"
    result = shell(capsys, f"{pure} --coordinates 512 --json", "--out", tmp_path / "p.json")
    facts = result.json
    assert (facts["payload_bytes"], facts["keep"], facts["profile"]["levels"]) == (80, 512, 2)
    assert facts["epsilon_upper"] <= 4
    assert facts["squared_error"] < 1.01 * 0.435
    assert Profile.load(tmp_path / "p.json").identity() == facts["identity"]
    assert "2 levels" in shell(capsys, f"{VECTOR} --delta 1e-5").out
    assert_refused(shell(capsys, f"{pure} --coordinates 500"), "power of two")
    assert_refused(shell(capsys, f"{pure} --bits 2"), "bits must be left out")


def test_sums_of_the_issue_example(capsys, tmp_path):
    words = f"{SECURE} --clients 300 --releases 20 --out"
    result = shell(capsys, words, tmp_path / "d.json")
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    for word in ("secure-aggregation trust", "modulus of the masks"):
        assert word in text
    facts = shell(capsys, words, tmp_path / "d.json", "--json").json
    assert 0.999 <= facts["epsilon_upper"] <= 1
    assert (facts["wire_bits"], facts["min_honest_clients"]) == (9, 300)
    assert quietbit.Design.load(tmp_path / "d.json").identity() == facts["identity"]


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        ("", "clients must be given"),
        ("--clients 1", "clients must be"),
        ("--clients 10 --min-honest-clients 11", "--min-honest-clients"),
        ("--clients 10 --mechanism skellam", "imvu"),
        ("--clients 10 --beta 2", "beta must be left out"),
        ("--clients 10 --norm l1", "l2 for secure aggregation"),
        ("--clients 10 --unit sample", "unit"),
        ("--clients 10 --sampling-rate 0.1", "--sampling-rate"),
    ],
)
def test_refusals_of_sums(capsys, words, mention):
    assert_refused(shell(capsys, f"{SECURE} {words}"), mention)
