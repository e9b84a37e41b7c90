"""The same client as WebAssembly: node runs the conformance vectors, and the module is that of
the sources.
"""

import base64
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from attrs import evolve

from core.native.kit import TOO_LARGE, by_python, table_of, updates, uplinks
from core.native.vector_maker import WRITTEN, file_of, vectors
from quietbit import Ball, Uplink

BROWSER = Path(__file__).parents[3] / "examples" / "browser"
NODE = shutil.which("node")


def builder():
    spec = importlib.util.spec_from_file_location("browser_build", BROWSER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_node(*files):
    command = [str(NODE), str(Path(__file__).with_name("wasm.mjs")), str(BROWSER), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_module_is_that_of_the_sources():
    note = json.loads((BROWSER / "quietbit.wasm.json").read_text())
    module = (BROWSER / "quietbit.wasm").read_bytes()
    assert hashlib.sha256(module).hexdigest() == note["sha256"]
    assert note["sources"] == builder().sources_digest(), "python examples/browser/build.py"
    assert len(module) < 30_000


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_node_runs_the_vectors():
    files = [file_of(name) for name in WRITTEN]
    short = [file for file in files if json.loads(file.read_text())["table"] is not None]
    assert run_node(*short) == {
        "imports": 0,
        "payloads": 18 * len(short),
        "refusals": 9 * len(short),
    }


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_what_a_page_cannot_address_is_refused(tmp_path):
    """With 32 bits, 4 GiB of a padded update are a size of zero, and a release writes beyond it."""
    large = Uplink(evolve(uplinks()["a seed"].mechanism, ball=Ball("l2", 2**29 + 1)))
    vector = {"table": base64.b64encode(table_of(large)).decode()}
    (tmp_path / "large.json").write_text(json.dumps(vector))
    script = tmp_path / "large.mjs"
    script.write_text(
        f"""
import {{ readFileSync }} from "node:fs";
const {{ Client }} = await import({(BROWSER / "quietbit.js").as_uri()!r});
const table = Buffer.from(JSON.parse(readFileSync(process.argv[2], "utf8")).table, "base64");
const module = readFileSync({str(BROWSER / "quietbit.wasm")!r});
await Client.load(module, table).then(
  () => console.log("opened"), (error) => console.log(error.status));
"""
    )
    command = [str(NODE), str(script), str(tmp_path / "large.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == f"{TOO_LARGE}\n", done.stderr


@pytest.mark.long
@pytest.mark.skipif(NODE is None, reason="needs node")
def test_node_sends_two_thousand_payloads_of_python(tmp_path):
    files = []
    for name, uplink in uplinks().items():
        content = vectors(name, uplink, table_of(uplink)) | {"releases": [], "zeroed": []}
        for number, update in enumerate(updates(uplink.mechanism.ball.dimension, 100, 3)):
            key = hashlib.sha256(f"{name} {number}".encode()).digest()
            payload = by_python(uplink, update, key)
            content["releases"].append(
                {"update": update.tobytes().hex(), "key": key.hex(), "payload": payload.hex()}
            )
        files.append(tmp_path / f"{len(files)}.json")
        files[-1].write_text(json.dumps(content))
    assert run_node(*files)["payloads"] == 200 * len(files)


@pytest.mark.long
@pytest.mark.skipif(find_spec("ziglang") is None, reason="needs the ziglang wheel")
def test_the_module_can_be_made_again(tmp_path):
    module = builder()
    version = subprocess.run(
        [sys.executable, "-m", "ziglang", "version"], capture_output=True, text=True
    ).stdout.strip()
    if version != module.ZIG:
        pytest.skip(f"the module was made with zig {module.ZIG}, and this is {version}")
    module.build(tmp_path / "again.wasm")
    assert (tmp_path / "again.wasm").read_bytes() == (BROWSER / "quietbit.wasm").read_bytes()
