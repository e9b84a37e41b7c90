"""Figure 3's parts: gradients of single clients, passes over rows, laws of sums, weights."""

import copy
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quietbit.kernel.transform import padded_size, rotate, signs

torch = pytest.importorskip("torch")
if find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
FOLDER = str(Path(__file__).parents[3] / "experiments")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {"blocks": 1, "width": 1}


@pytest.fixture(scope="module")
def parts():
    sys.path.insert(0, FOLDER)
    try:
        import client_rows
        import fig3_finetune
        import row_passes
        import wide_network

        yield SimpleNamespace(
            rows=client_rows, tuned=fig3_finetune, passes=row_passes, wide=wide_network
        )
    finally:
        sys.path.remove(FOLDER)


@pytest.fixture(scope="module")
def kept(parts, tmp_path_factory):
    """The folder of a small network's plain weights in 8 bits."""
    torch.manual_seed(0)
    trained = parts.wide.Wide(7, plain=False, **SMALL)
    folder = tmp_path_factory.mktemp("wide") / "parts"
    parts.wide.keep_in_bytes(folder, parts.wide.plain_weights(trained))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = trained.channels(x)
        rounded = parts.wide.restored(folder, 10, **SMALL).channels(x)
    assert 0 < float((rounded - wanted).norm() / wanted.norm()) < 0.05
    return folder


def test_rows_are_the_gradients_of_single_clients(parts):
    torch.manual_seed(1)
    plain = parts.wide.Wide(10, plain=True, **SMALL).double()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rows = parts.rows.Rows(copy.deepcopy(plain), "cpu", 4, kind=torch.float64)
    images, labels = torch.randint(0, 256, (3, 32, 32, 3)).byte(), torch.tensor([1, 4, 9])
    found, lengths = rows.of(images, labels)
    layers = [module for module in plain.modules() if hasattr(module, "weight")]
    for place, label in enumerate(labels):
        plain.zero_grad()
        scores = plain(parts.wide.scaled(images[place : place + 1]).double())
        torch.nn.functional.cross_entropy(scores, label[None]).backward()
        gradients = [p.grad for layer in layers for p in layer.parameters()]
        wanted = torch.cat([parts.rows.turned(one).reshape(-1) for one in gradients])
        torch.testing.assert_close(found[place], wanted, rtol=1e-9, atol=1e-12)
        assert float(lengths[place]) == pytest.approx(float(wanted.norm()), rel=1e-12)
    assert rows.buffer[:, rows.dimension :].count_nonzero() == 0
    rows.load(rows.flat() * 2)
    assert torch.equal(rows.part(0)[0], 2 * plain.stem.weight)


def test_kept_coordinates_are_those_of_the_rotation(parts):
    dimension, keep, seed = 5000, 1024, 3
    size = padded_size(dimension)
    rows = torch.randn(2, dimension, dtype=torch.float64)
    offsets = torch.randint(size // keep, (2, keep))
    turn = torch.tensor(signs(size, seed), dtype=torch.int8)
    found = parts.passes.kept(rows, turn, offsets, plain=True)
    for row, offset, kept in zip(rows, offsets, found, strict=True):
        whole = np.asarray(rotate(np.pad(row.numpy(), (0, size - dimension)), seed))
        chosen = (offset + torch.arange(keep) * (size // keep)).numpy()
        np.testing.assert_allclose(kept, whole[chosen], atol=1e-5)
    back = parts.passes.unrotate(parts.passes.rotate(rows, turn)[0], turn, dimension)
    np.testing.assert_allclose(back, rows[0], atol=1e-12)


@pytest.fixture
def triton():
    return pytest.importorskip("triton")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic
@pytest.mark.parametrize("keep", [64, 2048])
def test_kernels_keep_what_the_plain_way_keeps(parts, triton, keep):
    size = 16384
    rows, turn = padded(2, 8900), turn_of(size)
    offsets = torch.randint(size // keep, (2, keep), device=DEVICE)
    wanted = parts.passes.kept(rows.double(), turn, offsets, plain=True)
    found = parts.passes.kept(rows, turn, offsets, plain=False)
    assert float((found - wanted).abs().max()) < (1e-5 if DEVICE == "cpu" else 1e-2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("dimension", "law", "room"),
    [
        (2100, ("sum",), 1e-5),
        (2100, ("logistic", 2.0, 0.4), 1e-5),
        (2100, ("normal", 1.3, 0.7), 1e-5),
        (5000, ("logistic", 0.7, 1.5, True), 2e-3),
    ],
    ids=["plain", "logistic", "normal", "rotated"],
)
def test_kernels_sum_what_the_plain_way_sums(parts, triton, dimension, law, room):
    rows, factors = padded(4, dimension), torch.rand(4, device=DEVICE)
    given = parts.passes.Law(*law), turn_of(8192)
    wanted = parts.passes.sums(rows.double(), factors.double(), *given, plain=True)
    found = parts.passes.sums(rows, factors, *given, plain=False)
    for one, other in zip(wanted, found, strict=True):
        assert float((one - other).abs().max()) < room


def turn_of(size):
    return torch.tensor(signs(size, 7), dtype=torch.int8, device=DEVICE)


def padded(count, dimension):
    whole = torch.zeros((count, -(-dimension // 64) * 64), device=DEVICE)
    whole[:, :dimension].normal_()
    return whole[:, :dimension]


@pytest.mark.parametrize("name", ["gaussian", "imvu", "imvu-plain", "sign", "vmvu*2", "imvu@1024"])
def test_means_have_the_moments_that_the_mechanism_states(parts, name):
    """Mean along the update and variance over all: six deviations, false alarms 1e-9 each."""
    dimension, clients = 2000, 100
    generator = torch.Generator().manual_seed(5)
    row = torch.full((dimension,), 0.9 / dimension**0.5)
    rows, factors = row.expand(clients, dimension), torch.full((clients,), 0.5)
    summed = parts.tuned.Sum(name, 8.0, dimension, "cpu", plain=True)
    assert summed.facts["epsilon_upper"] <= 8.0
    found = summed.mean([summed.of(rows, factors, generator)], clients)
    whole = name.partition("*")[0].partition("@")[0].partition("-")[0]
    single = summed.mechanism
    noise = (summed.spread if whole != "vmvu" else 1 / single.profile.gain_lower) ** 2
    if summed.keep:
        noise += (0.45**2) / summed.keep  # rows of its own for every client
    noise /= clients * summed.times
    assert float((found - 0.5 * row).square().mean()) == pytest.approx(
        noise, rel=6 * (2 / dimension) ** 0.5 + 0.03
    )
    along = float(found @ row) / float(row @ row)
    assert abs(along - 0.5) < 6 * (noise / float(row @ row)) ** 0.5


def test_trainings_are_kept_and_not_run_again(parts, kept, tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    some = SimpleNamespace(
        inputs=rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8), labels=rng.integers(0, 10, 60)
    )
    monkeypatch.setattr(
        parts.tuned, "load_cifar10", lambda _: SimpleNamespace(train=some, test=some)
    )
    out = tmp_path / "results.json"

    words = f"fig3 {kept} --data none --blocks 1 --width 1 --cohort 10 --chunk 6 --rounds 2"
    words += f" --out {out} --minutes 100 --jobs"

    def run(*jobs):
        monkeypatch.setattr(sys, "argv", [*words.split(), *jobs])
        parts.tuned.main()
        return json.loads(out.read_text())

    first = run("none:0:0.1,0.4", "gaussian:10:0.1")
    assert [(one["mechanism"], one["step"], one["seed"]) for one in first] == [
        ("none", 0.1, 1),
        ("none", 0.4, 1),
        ("gaussian", 0.1, 1),
    ]
    again = run("none:0:0.1,0.4", "gaussian:10:best:1,2")
    assert again[:3] == first
    assert len(again) == 4
    assert again[3]["seed"] == 2
    assert again[3]["step"] == 0.1
    assert "gaussian 10 step 0.1 seed 2" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="sign:10 has no first training"):
        run("sign:10:best:2")
