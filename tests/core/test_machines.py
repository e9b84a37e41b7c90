"""No result depends on the machine: BLAS kernels, vector units and mathematics libraries.

What two machines must agree on without telling each other: mechanisms that both calibrate, the
values that replaying nodes decode with, and the tables of clients without Python. Each is written
in processes that pretend to be other machines.
"""

import json
import os
import platform
import subprocess
import sys

import pytest

WRITE = """
import hashlib, json

from quietbit import Ball, InterpolatedMVU, Uplink, calibrate
from quietbit.design.closed_form import closed_form
from quietbit.design.table import DesignSpec
from quietbit.mechanism.registry import build
from quietbit.client_table import client_table
from quietbit.node.request import ProposedMechanism, description_of
from quietbit.target import Target

ball, diamond = Ball("l2", 300), Ball("l1", 50)
found = {}
def note(name, mechanism):
    text = description_of(mechanism)
    found[name] = text
    assert description_of(ProposedMechanism.read(text).mechanism) == text
    if isinstance(mechanism, InterpolatedMVU):
        found["values of " + name] = mechanism.values.tobytes().hex()

for adjacency, epsilon, releases in (("zero-out", 0.7, 30), ("replace-one", 2.3, 1)):
    given = dict(epsilon=epsilon, delta=1e-5, adjacency=adjacency, releases=releases)
    for name, choices in {
        "imvu": {"ball": ball},
        "imvu of few": {"ball": ball, "coordinates": 64},
        "imvu l1": {"ball": diamond},
        "imvu of two bits": {"ball": ball, "bits": 2},
        "gaussian": {"ball": ball},
        "gaussian batch": {"ball": ball, "samples": 500, "sampling_rate": 0.05},
    }.items():
        note(f"{name} {epsilon}", calibrate(name.split()[0], **choices, **given).mechanism)
note("vmvu", calibrate("vmvu", ball=ball, **given).mechanism)
for honest in (10, 100):
    asked = dict(epsilon=4.0, delta=1e-5, adjacency="zero-out", honest=honest)
    note(f"sum {honest}", calibrate("imvu", ball=ball, **asked).mechanism)
for levels in (2, 7):
    for step in range(40):
        formula = closed_form(DesignSpec(levels, 1, 0.05 * 1.17**step))
        found[f"formula {levels} {step}"] = [part.tobytes().hex() for part in formula]
for name in ("imvu 2.3", "imvu of two bits 2.3"):
    mechanism = build(json.loads(found[name]))
    table = client_table([Uplink(mechanism)], Target(1e6, 1e-5, "zero-out"))
    found["table of " + name] = hashlib.sha256(table).hexdigest()
print(json.dumps(found))
"""
NO_VECTORS = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
OTHERS = {
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "Prescott": {"OPENBLAS_CORETYPE": "Prescott"},
    "no vector units": {
        "NPY_DISABLE_CPU_FEATURES": NO_VECTORS,
        "QUIETBIT_INSTRUCTION_SET": "sse2",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-FMA4",
    },
}
OTHERS["both"] = OTHERS["Haswell"] | OTHERS["no vector units"]
on_x86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="pretends to be other x86-64s"
)


def written(folder, environment):
    """What a process writes that has an empty cache and these variables."""
    names = {"XDG_CACHE_HOME": str(folder), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", WRITE],
        env=os.environ | names | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return written(tmp_path_factory.mktemp("cache"), {})


@on_x86
@pytest.mark.slow
@pytest.mark.parametrize(
    "machine",
    [
        "both",
        *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS if name != "both"),
    ],
)
def test_machines_agree(tmp_path, here, machine):
    there = written(tmp_path, OTHERS[machine])
    assert [name for name in here if there[name] != here[name]] == []


@on_x86
def test_the_pretence_is_not_in_vain(tmp_path):
    """Exponentials do differ without vector units, so that the test above could fail."""
    exponentials = "import numpy as np; print(np.exp(np.linspace(-9, 9, 4001)).tobytes().hex())"
    lines = set()
    for environment in ({}, OTHERS["no vector units"]):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", exponentials],
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        lines.add(done.stdout)
    if len(lines) == 1:
        pytest.skip("this processor has no wide vector unit for numpy's exponentials")
