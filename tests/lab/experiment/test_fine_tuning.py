"""Figure 3's own parts: gradients of single clients, coordinates of long rows, and a network that keeps its weights."""

import sys
from pathlib import Path

import numpy as np
import pytest

from quietbit.kernel.transform import padded_size, rotate

torch = pytest.importorskip("torch")
FOLDER = str(Path(__file__).parents[3] / "experiments")


@pytest.fixture(scope="module")
def parts():
    sys.path.insert(0, FOLDER)
    try:
        import fig3_finetune
        import wide_network

        yield fig3_finetune, wide_network
    finally:
        sys.path.remove(FOLDER)


@pytest.fixture(scope="module")
def network(parts, tmp_path_factory):
    """A small one, kept and restored, with a head that is not zero."""
    _, wide = parts
    torch.manual_seed(0)
    trained = wide.Wide(7, plain=False, blocks=1, width=1)
    path = tmp_path_factory.mktemp("wide") / "wide.npz"
    np.savez(path, **wide.plain_weights(trained))
    plain = wide.restored(path, 10, blocks=1, width=1)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(plain.channels(x), trained.channels(x), atol=1e-4)
    torch.nn.init.normal_(plain.head.weight)
    return plain


def test_rows_are_the_gradients_of_single_clients(parts, network):
    tuned, wide = parts
    rows = tuned.Rows(network, "cpu", 3)
    images, labels = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8), torch.tensor([1, 4, 9])
    found, lengths = rows.of(images, labels)
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    for place in range(3):
        network.zero_grad()
        scores = network(wide.scaled(images[place : place + 1]))
        torch.nn.functional.cross_entropy(scores, labels[place : place + 1]).backward()
        each = [tuned.turned(p.grad).reshape(-1) for layer in rows.layers for p in layer.parameters()]
        wanted = torch.cat(each)
        assert float((found[place] - wanted).norm() / wanted.norm()) < 1e-5
        assert float(lengths[place]) == pytest.approx(float(wanted.norm()), rel=1e-5)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    flat = rows.flat()
    rows.load(flat + 1)
    assert torch.allclose(rows.flat(), flat + 1)
    rows.load(flat)


def test_coordinates_of_a_long_row_are_those_of_its_rotation(parts):
    tuned, _ = parts
    dimension = 5000
    summed = tuned.Sum("vmvu", {"epsilon": 4.0, "adjacency": "zero-out", "releases": 1}, dimension, "cpu")
    keep, size = summed.mechanism.keep, padded_size(dimension)
    row = torch.randn(dimension)
    offsets = torch.randint(size // keep, (keep,))
    found = summed._projections(row, offsets, keep, size).numpy()
    whole = np.zeros(size)
    whole[:dimension] = row.numpy()
    wanted = np.asarray(rotate(whole, summed.mechanism.rotation_seed))[
        (offsets + torch.arange(keep) * (size // keep)).numpy()
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
