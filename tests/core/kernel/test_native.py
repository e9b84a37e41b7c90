"""The C library: built once, it says when it was built wrongly, and it computes as Python does."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quietbit.errors import InvalidParameter, MissingDependency
from quietbit.kernel import c as native
from quietbit.kernel.c import build
from quietbit.kernel.norm import clip_factor, exact_sum
from quietbit.kernel.sampler import Gain
from quietbit.kernel.transform import sign_key

SOURCE = build.FOLDER / "quietbit.c"
COMPILER = build.find_compiler()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


def test_an_unknown_instruction_set_is_refused(monkeypatch):
    monkeypatch.setenv(native.INSTRUCTION_SET, "altivec")
    native.library.cache_clear()
    with pytest.raises(InvalidParameter) as refusal:
        native.library()
    assert (refusal.value.name, refusal.value.value) == (native.INSTRUCTION_SET, "altivec")
    monkeypatch.undo()
    native.library.cache_clear()
    assert native.library() is not None


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="flags of gcc and clang on Linux")
def test_a_fused_build_is_refused(tmp_path):
    """With products and sums fused the last bits differ, so such a library must not draw a
    single code.
    """
    fused = [flag for flag in build.FLAGS if flag not in ("-ffp-contract=off", "-O3")]
    target = tmp_path / "fused.so"
    # The portable build with one instruction set takes a second: with FMA, and told to use it.
    machine = ["-DQB_PORTABLE", "-mfma"] if os.uname().machine == "x86_64" else []
    command = [*COMPILER, *fused, "-O2", "-fPIC", "-ffp-contract=fast", *machine]
    subprocess.run([*command, str(SOURCE), "-o", str(target)], check=True, capture_output=True)
    if "fma" not in Path("/proc/cpuinfo").read_text() and machine:
        pytest.skip("this processor has no fused multiply-add")
    with pytest.raises(MissingDependency, match="self-test"):
        native.load(target)


@needs_compiler
def test_a_library_is_named_by_its_sources_and_built_once(tmp_path):
    source = tmp_path / "small.c"
    source.write_text("int answer(void) { return 42; }\n")
    first = build.build_library(source, (source.name,))
    changed = first.stat().st_mtime_ns
    assert build.build_library(source, (source.name,)) == first
    assert first.stat().st_mtime_ns == changed
    source.write_text("int answer(void) { return 43; }\n")
    second = build.build_library(source, (source.name,))
    assert second != first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, second.name])


@needs_compiler
def test_a_library_built_elsewhere_has_the_same_bytes(tmp_path):
    """Of whole wheels `tests/packaging` says the same, every night."""
    found = []
    for name in ("here", "somewhere else"):
        (tmp_path / name).mkdir()
        source = tmp_path / name / "small.c"
        source.write_text("const char *answer(void) { return __func__; }\n")
        found.append(build.build_library(source, (source.name,)).read_bytes())
    assert found[0] == found[1]


def test_a_failing_compiler_is_named(tmp_path):
    source = tmp_path / "broken.c"
    source.write_text("#error broken on purpose\n")
    if COMPILER is not None:
        with pytest.raises(build.BuildFailed, match="broken on purpose"):
            build.build_library(source, (source.name,))
    with pytest.raises(build.BuildFailed, match="no-such-compiler"):
        build.build_library(source, (source.name,), compiler=["/no-such-compiler"])
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_something_else_is_no_library(tmp_path):
    other = tmp_path / "other.so"
    other.write_bytes(b"not a library")
    with pytest.raises(MissingDependency, match=r"other\.so cannot be loaded"):
        native.load(other)


def test_structures_of_python_are_those_of_c():
    header = (build.FOLDER / "quietbit.h").read_text()
    assert f"#define QB_VERSION {native.VERSION} " in header
    assert f"QB_MAX_COEFFICIENTS = {native.MAX_COEFFICIENTS}\n" in header
    declared = {
        word.split("(")[0] for word in header.split() if word.startswith("qb_") and "(" in word
    }
    assert declared == set(native.SIGNATURES)


def test_public_signs_are_those_of_numpy():
    library = native.library()
    for size, seed in ((5, 0), (4096, 7), (2**33 + 1, 2**40 + 3)):
        words = [seed % 2**32, seed >> 32, 0, 0, size % 2**32]
        if size >= 2**32:
            words.append(size >> 32)
        entropy = np.array(words, np.uint32)
        key = np.empty(2, np.uint64)
        library.qb_seed_key(native.address(entropy), entropy.size, native.address(key))
        np.testing.assert_array_equal(key, sign_key(size, seed))
        signs = np.empty(101, np.uint64)
        library.qb_philox(native.address(key), 3, 101, native.address(signs))
        np.testing.assert_array_equal(signs, np.random.Philox(key=key).random_raw(104)[3:])


def test_sums_clip_factors_and_gains_are_those_of_python():
    generator = np.random.default_rng(2)
    library = native.library()
    gain = np.empty(4)
    for number in range(2000):
        terms = np.abs(generator.normal(size=number % 40)) * 10.0 ** generator.integers(
            -300, 300, number % 40
        )
        assert library.qb_exact_sum(native.address(terms), terms.size) == exact_sum(terms.tolist())
        norm = float(10.0 ** generator.uniform(-300, 300))
        radius = float(10.0 ** generator.uniform(-200, 200))
        for room in (0, 16, 38):
            wanted = clip_factor(norm, radius, 2.0**-room if room else 0.0)
            assert library.qb_clip_factor(norm, radius, room) == wanted
        factor = clip_factor(norm, radius)
        scale = float(10.0 ** generator.uniform(-100, 100))
        if factor == 0.0 or factor > 2.0**-1000:
            library.qb_gain(factor, scale, native.address(gain))
            assert tuple(gain) == tuple(Gain.of(factor, scale))
    for terms in (np.array([np.inf, 1.0]), np.array([1e308, 1e308])):
        assert library.qb_exact_sum(native.address(terms), 2) == np.inf
    assert library.qb_clip_factor(0.0, 1.0, 38) == 1.0
