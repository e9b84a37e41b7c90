import gzip
import lzma
import struct

import numpy as np
import pytest

from quietbit_lab.task.dataset import (
    DamagedData,
    MissingData,
    data_folder,
    find,
    load_packed,
    read_idx,
)
from quietbit_lab.task.images import IDX_FILES, load_mnist


def idx(array, kind=8):
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    return head + array.astype({8: np.uint8, 12: ">i4"}[kind]).tobytes()


@pytest.mark.parametrize("kind", [8, 12])
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bytes])
def test_idx_files_packed_or_not(tmp_path, kind, pack):
    array = np.arange(24).reshape(2, 3, 4)
    path = tmp_path / "file"
    path.write_bytes(pack(idx(array, kind)))
    np.testing.assert_array_equal(read_idx(path), array)


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 9, 15, 16, 39, -1])
@pytest.mark.parametrize("packed", [True, False])
def test_a_file_cut_short_is_one_sentence(tmp_path, cut, packed):
    path = tmp_path / "train-images"
    content = idx(np.arange(24).reshape(2, 3, 4))
    content = gzip.compress(content) if packed else content
    path.write_bytes(content[:cut])
    with pytest.raises(DamagedData, match="is damaged") as error:
        read_idx(path)
    assert str(path) in str(error.value)


def test_a_file_too_long_is_refused(tmp_path):
    path = tmp_path / "train-images"
    path.write_bytes(idx(np.arange(24).reshape(2, 3, 4)) + b"\0")
    with pytest.raises(DamagedData, match="bytes"):
        read_idx(path)


def test_another_mnist_of_the_same_shape_is_refused(tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / IDX_FILES[0]).write_bytes(idx(np.zeros((60_000, 28, 28), dtype=np.uint8)))
    with pytest.raises(DamagedData, match="md5"):
        load_mnist(tmp_path)


def test_packed_arrays_have_the_shape_they_should(tmp_path):
    path = tmp_path / "images.npy.xz"
    with lzma.open(path, "wb") as file:
        np.save(file, np.zeros((2, 3), dtype=np.uint8))
    assert load_packed(path, (2, 3)).shape == (2, 3)
    with pytest.raises(DamagedData, match="shape"):
        load_packed(path, (3, 2))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedData):
        load_packed(path, (2, 3))


def test_what_is_missing_is_said_with_the_command(tmp_path):
    with pytest.raises(MissingData, match="quietbit data get mnist"):
        find(tmp_path, "mnist", "train-images-idx3-ubyte.gz")
    with pytest.raises(MissingData, match=r"experiments/README\.md"):
        find(tmp_path, "femnist", "images.npy.xz")


def test_where_data_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIETBIT_DATA", str(tmp_path / "named"))
    assert data_folder() == tmp_path / "named"
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("QUIETBIT_DATA")
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    assert data_folder().resolve() == (tmp_path / "shared" / "data").resolve()
