"""The C sources on other platforms, and under sanitizers."""

import base64
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from core.native.kit import SOURCES, compiled, table_of, uplinks
from core.native.vector_maker import WRITTEN, file_of
from quietbit.kernel.c import build

COMPILER = build.find_compiler()
FUZZ = Path(__file__).with_name("fuzz.c")
EXAMPLE = Path(__file__).parents[3] / "examples" / "c-client" / "client.c"
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
ZIG = [sys.executable, "-m", "ziglang", "cc"]
needs_zig = pytest.mark.skipif(
    find_spec("ziglang") is None, reason="needs the ziglang wheel: pip install ziglang"
)
SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-g",
    "-O1",
    "-DQB_STATIC",
)


def has_sanitizers(folder):
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = [*COMPILER, *SANITIZERS, str(source), "-o", str(folder / "empty")]
    return subprocess.run(command, capture_output=True).returncode == 0


def fuzz(folder, iterations, seed):
    if COMPILER is None or not has_sanitizers(folder):
        pytest.skip("needs a C compiler with sanitizers")
    program = compiled(folder, "fuzz", COMPILER, *SANITIZERS, str(FUZZ))
    known = uplinks()
    tables = []
    for name in (
        "one bit, rotated",
        "one bit",
        "three bits, five levels",
        "a seed",
        "a seed, all rows",
    ):
        tables.append(folder / f"{len(tables)}.table")
        tables[-1].write_bytes(table_of(known[name]))
    command = [str(program), str(seed), str(iterations), *map(str, tables)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_random_tables_and_updates_under_sanitizers(tmp_path):
    fuzz(tmp_path, 40, seed=1)


@pytest.mark.long
def test_many_random_tables_and_updates_under_sanitizers(tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    fuzz(tmp_path, 4000, seed)


@pytest.mark.long
@needs_zig
@pytest.mark.parametrize(
    ("target", "suffix"),
    [
        ("aarch64-linux-gnu.2.17", ".so"),
        ("x86_64-linux-musl", ".so"),
        ("aarch64-macos", ".dylib"),
        ("x86_64-macos", ".dylib"),
        ("x86_64-windows-gnu", ".dll"),
        ("aarch64-windows-gnu", ".dll"),
    ],
)
def test_the_library_is_built_for_another_platform(tmp_path, target, suffix):
    library = tmp_path / f"quietbit{suffix}"
    independent = [] if "windows" in target else ["-fPIC"]
    command = [
        *ZIG,
        "-target",
        target,
        *build.FLAGS,
        *independent,
        *map(str, SOURCES),
        "-o",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    magic = library.read_bytes()[:4]
    assert magic[:2] == b"MZ" if suffix == ".dll" else magic in (b"\x7fELF", b"\xcf\xfa\xed\xfe")
    assert library.stat().st_size < 2_000_000


@pytest.mark.long
@needs_zig
@pytest.mark.skipif(QEMU is None, reason="needs Debian's qemu-user-static")
def test_payloads_of_an_emulated_aarch64_are_those_of_python(tmp_path):
    """NEON in place of SSE and AVX: the client on the command line sends what the vectors say."""
    command = [*ZIG, "-target", "aarch64-linux-musl", "-static", "-O2", "-DQB_STATIC"]
    program = compiled(tmp_path, "client", command, str(EXAMPLE))
    sent = 0
    for name in WRITTEN:
        content = json.loads(file_of(name).read_text())
        table = table_of(uplinks()[name])
        if content["table"] is not None:
            table = base64.b64decode(content["table"])
        (tmp_path / "table").write_bytes(table)
        (tmp_path / "text").write_text(content["text"])
        (tmp_path / "ledger").unlink(missing_ok=True)
        run = [str(QEMU), str(program), "table", "ledger"]
        subprocess.run(run, cwd=tmp_path, check=True)
        for release in content["releases"]:
            (tmp_path / "update").write_bytes(bytes.fromhex(release["update"]))
            words = [*run, "text", "update", "payload", release["key"]]
            subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
            assert (tmp_path / "payload").read_bytes().hex() == release["payload"], name
            sent += 1
    assert sent == 6 * len(WRITTEN)
