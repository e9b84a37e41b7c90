"""The containers of owners: what they promise is in their files, and where buildah can be had
they are built and run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quietbit.cli.main import main

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
ROOT = Path(__file__).parent.parent.parent
ROLES = {"flower-supernode": "flower", "nvflare-site": "nvflare"}
APPS = {"flower-supernode": "supernode", "nvflare-site": "site"}


def instructions(role):
    """The lines of a Containerfile, continued ones joined, without comments."""
    text = (ROOT / "deploy" / role / "Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def services(role):
    return yaml.safe_load((ROOT / "deploy" / role / "compose.yaml").read_text())["services"]


@pytest.mark.parametrize("role", ROLES)
def test_an_image_installs_what_is_locked_and_runs_as_nobody_special(role):
    steps = instructions(role)
    installs = [words for verb, words in steps if verb == "RUN" and "pip install" in words]
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert (
        "--no-deps --no-index" in installs[1]
    )  # quietbit is in no index: nothing may be fetched by that name
    copied = [words.split()[0] for verb, words in steps if verb == "COPY"]
    assert copied == [f"supply/locks/{ROLES[role]}.txt", "dist/quietbit-*.whl"]
    assert (ROOT / copied[0]).is_file()
    assert [words for verb, words in steps if verb == "USER"] == [ROLES[role]]
    assert not any(verb == "ADD" or "curl" in words or "wget" in words for verb, words in steps)
    assert steps[0] == ("ARG", "BASE=python:3.11-slim")
    assert steps[1] == ("FROM", "${BASE}")


@pytest.mark.parametrize("role", ROLES)
def test_ledger_and_network_are_never_in_one_container(role):
    found = services(role)
    gate, app = found["gatekeeper"], found[APPS[role]]
    assert set(found) == {"gatekeeper", APPS[role]}
    for service in (gate, app):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
    assert gate["network_mode"] == "none"
    assert "networks" not in gate
    assert gate["user"].split(":")[0] != app["user"].split(":")[0]
    made = re.findall(r"useradd --uid (\d+)", " ".join(words for _, words in instructions(role)))
    assert [gate["user"].split(":")[0], app["user"].split(":")[0]] == made
    assert any(volume.startswith("ledger:") for volume in gate["volumes"])
    assert not any("/var/lib/quietbit" in volume for volume in app["volumes"])
    assert {volume for volume in gate["volumes"] if volume.startswith("socket:")} == {
        volume for volume in app["volumes"] if volume.startswith("socket:")
    }


def first_command(file):
    """The words with which a file tells an owner to make the policy and the ledger."""
    text = re.sub(r" \\\n(?:#| )\s*", " ", (ROOT / file).read_text())
    return re.search(r"quietbit node init /.*", text)[0].split()


@pytest.mark.parametrize(
    "file", ["deploy/flower-supernode/compose.yaml", "docs/how-to/own-a-node.md"]
)
def test_the_first_command_works_as_it_is_written(file, tmp_path):
    words = first_command(file)
    assert words[3] == "/var/lib/quietbit/policy.toml"
    assert main([*words[1:3], str(tmp_path / "policy.toml"), *words[4:]]) == 0


@pytest.mark.parametrize("role", ROLES)
def test_commands_are_those_of_the_programs(role):
    from typer.main import get_command

    from quietbit.cli.app import app

    words = services(role)["gatekeeper"]["command"]
    assert words[:3] == ["quietbit", "node", "serve"]
    serve = get_command(app).commands["node"].commands["serve"]
    known = {option for parameter in serve.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    socket = words[words.index("--socket") + 1]
    if role == "flower-supernode":
        asked = services(role)["supernode"]["command"]
        assert f'quietbit.gatekeeper="{socket}"' in asked
        flower = Path(sys.executable).with_name("flower-supernode")
        if flower.exists():
            said = subprocess.run(
                [flower, "--help"], capture_output=True, text=True, timeout=120
            ).stdout
            assert not [word for word in asked if word.startswith("--") and word not in said]
    else:
        privacy = json.loads((ROOT / "deploy" / role / "privacy.json").read_text())
        assert privacy["scopes"][0]["properties"] == {"quietbit.gatekeeper": socket}


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_an_image_is_built_and_its_app_cannot_read_the_ledger(role, tmp_path):
    """With buildah on a Debian of packages: the doctor runs in it, and the owner's first command."""
    missing = [tool for tool in ("buildah", "mmdebstrap") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip("needs root, buildah and mmdebstrap")
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".venv", ".git", "site", "dist", "*_cache")
    shutil.copytree(ROOT, tree, ignore=ignored)
    make = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "dist", "."]
    subprocess.run(make, cwd=tree, check=True)
    said = subprocess.run(["supply/containers.sh", role], cwd=tree, capture_output=True, text=True)
    if "Failed to fetch" in said.stderr or "connection broken" in said.stderr:
        pytest.skip("the base or its packages cannot be fetched here")
    assert said.returncode == 0, said.stderr
    assert "FAIL" not in said.stdout
    assert said.stdout.count("PASS") >= 3
    assert "This node's policy and ledger are made" in said.stdout
