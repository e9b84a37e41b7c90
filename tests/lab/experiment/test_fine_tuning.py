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
    """A small network's plain weights, and the folder where they are in 8 bits."""
    torch.manual_seed(0)
    trained = parts.wide.Wide(7, plain=False, **SMALL)
    folder = tmp_path_factory.mktemp("wide") / "parts"
    parts.wide.keep_in_bytes(folder, parts.wide.plain_weights(trained))
    return trained, folder


def test_kept_weights_are_those_of_the_network(parts, kept, tmp_path, monkeypatch):
    trained, folder = kept
    weights = parts.wide.plain_weights(trained)
    np.savez(tmp_path / "wide.npz", **weights)
    exact = parts.wide.restored(tmp_path / "wide.npz", 10, **SMALL)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = trained.channels(x)
        assert torch.allclose(exact.channels(x), wanted, atol=1e-4)
        rounded = parts.wide.restored(folder, 10, **SMALL).channels(x)
        assert 0 < float((rounded - wanted).norm() / wanted.norm()) < 0.05
    monkeypatch.setattr(parts.wide, "MOST_BYTES", 30_000)
    found = parts.wide.keep_in_bytes(tmp_path / "parts", weights)
    files = sorted((tmp_path / "parts").iterdir())
    assert len(files) > 2
    assert max(file.stat().st_size for file in files) < 60_000
    for name, value in weights.items():
        room = (
            np.abs(value).max(axis=tuple(range(1, value.ndim)), keepdims=True) / 254
            if value.ndim > 1
            else 0.0
        )
        assert np.all(np.abs(found[name] - value) <= room * 1.001)


def test_rows_are_the_gradients_of_single_clients(parts):
    torch.manual_seed(1)
    plain = parts.wide.Wide(10, plain=True, **SMALL).double()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rows = parts.rows.Rows(copy.deepcopy(plain), "cpu", 4, kind=torch.float64)
    images, labels = (
        torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8),
        torch.tensor([1, 4, 9]),
    )
    found, lengths = rows.of(images, labels)
    layers = [module for module in plain.modules() if hasattr(module, "weight")]
    for place in range(3):
        plain.zero_grad()
        scores = plain(parts.wide.scaled(images[place : place + 1]).double())
        torch.nn.functional.cross_entropy(scores, labels[place : place + 1]).backward()
        wanted = torch.cat(
            [parts.rows.turned(p.grad).reshape(-1) for layer in layers for p in layer.parameters()]
        )
        assert float((found[place] - wanted).norm() / wanted.norm()) < 1e-12
        assert float(lengths[place]) == pytest.approx(float(wanted.norm()), rel=1e-12)
    assert rows.buffer[:, rows.dimension :].count_nonzero() == 0
    rows.load(rows.flat() * 2)
    assert torch.equal(rows.part(0)[0], 2 * plain.stem.weight)


def test_kept_coordinates_are_those_of_the_rotation(parts):
    dimension, keep, seed = 5000, 1024, 3
    size = padded_size(dimension)
    rows, offsets = (
        torch.randn(2, dimension, dtype=torch.float64),
        torch.randint(size // keep, (2, keep)),
    )
    turn = torch.tensor(signs(size, seed), dtype=torch.int8)
    found = parts.passes.kept(rows, turn, offsets, plain=True)
    for place in range(2):
        whole = np.concatenate((rows[place].numpy(), np.zeros(size - dimension)))
        chosen = (offsets[place] + torch.arange(keep) * (size // keep)).numpy()
        np.testing.assert_allclose(found[place], np.asarray(rotate(whole, seed))[chosen], atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic
@pytest.mark.parametrize("keep", [64, 2048])
def test_kernels_keep_what_the_plain_way_keeps(parts, keep):
    pytest.importorskip("triton")
    dimension, size = 8900, 16384
    rows = padded(2, dimension)
    turn = (torch.randint(0, 2, (size,)) * 2 - 1).to(torch.int8).to(DEVICE)
    offsets = torch.randint(size // keep, (2, keep), device=DEVICE)
    wanted = parts.passes.kept(rows.double(), turn, offsets, plain=True)
    found = parts.passes.kept(rows, turn, offsets, plain=False)
    assert float((found - wanted).abs().max()) < (1e-5 if DEVICE == "cpu" else 1e-2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_sum_what_the_plain_way_sums(parts):
    pytest.importorskip("triton")
    rows, factors = padded(5, 2100), torch.rand(5, device=DEVICE)
    for law in (
        parts.passes.Law("sum"),
        parts.passes.Law("logistic", 2.0, 0.4),
        parts.passes.Law("normal", 1.3, 0.7),
    ):
        wanted = parts.passes.sums(rows.double(), factors.double(), law, plain=True)
        for one, other in zip(
            wanted, parts.passes.sums(rows, factors, law, plain=False), strict=True
        ):
            assert float((one - other).abs().max()) < 1e-5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_sum_rotated_coordinates_as_the_plain_way_does(parts):
    pytest.importorskip("triton")
    rows, factors = padded(3, 5000), torch.rand(3, device=DEVICE)
    turn = (torch.randint(0, 2, (8192,)) * 2 - 1).to(torch.int8).to(DEVICE)
    law = parts.passes.Law("logistic", 0.7, 1.5, rotated=True)
    wanted = parts.passes.sums(rows.double(), factors.double(), law, turn, plain=True)
    for one, other in zip(
        wanted, parts.passes.sums(rows, factors, law, turn, plain=False), strict=True
    ):
        assert float((one - other).abs().max()) < 2e-3


def test_a_rotation_is_undone_and_spreads_one_coordinate(parts):
    turn = torch.tensor(signs(8192, 1))
    lone = torch.zeros((1, 5000), dtype=torch.float64)
    lone[0, 17] = 1.0
    rotated = parts.passes.rotate(lone, turn)
    assert float(rotated.abs().max()) == pytest.approx(1 / 64)
    np.testing.assert_allclose(parts.passes.unrotate(rotated[0], turn, 5000), lone[0], atol=1e-12)


def padded(count, dimension):
    whole = torch.zeros((count, -(-dimension // 64) * 64), device=DEVICE)
    whole[:, :dimension].normal_()
    return whole[:, :dimension]


@pytest.mark.parametrize(
    "name", ["gaussian", "imvu", "imvu-plain", "sign", "sign-plain", "vmvu", "vmvu*2", "imvu@1024"]
)
def test_means_have_the_moments_that_the_mechanism_states(parts, name):
    """Mean along the update and variance over all: six deviations, false alarms 1e-9 each."""
    dimension, clients = 2000, 400
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

    def run(*jobs):
        given = [
            "fig3",
            str(kept[1]),
            "--data",
            "none",
            "--blocks",
            "1",
            "--width",
            "1",
            "--cohort",
            "10",
        ]
        given += [
            "--chunk",
            "6",
            "--rounds",
            "2",
            "--out",
            str(out),
            "--minutes",
            "100",
            "--jobs",
            *jobs,
        ]
        monkeypatch.setattr(sys, "argv", given)
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
