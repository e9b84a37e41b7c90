"""The example as Flower Hub takes it: Flower's own checks before an upload, and the bundle that it
builds.
"""

import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs quietbit[flower]")
from flwr.cli.config_utils import load_and_validate
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

publish = importlib.import_module("flwr.cli.app_cmd.publish")
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flower-digits"


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of Flower's own
def test_flower_would_upload_the_example(capsys):
    config, warnings = load_and_validate(EXAMPLE / "pyproject.toml", check_module=False)
    assert warnings == []
    normalize_and_validate_fab_format(config)
    assert config["tool"]["flwr"]["app"]["fab-format-version"] == 1
    publish._validate_app_name(EXAMPLE.name, "Flower App directory name")
    publish._validate_description(config["project"]["description"])
    files = publish._collect_file_paths(EXAMPLE)
    publish._validate_files(files)
    names = {str(file.relative_to(EXAMPLE)) for file in files}
    modules = {str(file.relative_to(EXAMPLE)) for file in EXAMPLE.glob("*/*.py")}
    assert names == {"LICENSE", "README.md", "pyproject.toml"} | modules
    assert "more than 200 characters" not in capsys.readouterr().out


def test_the_bundle_holds_the_app_and_its_licence(tmp_path):
    app = tmp_path / EXAMPLE.name
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    flwr = Path(sys.executable).with_name("flwr")
    subprocess.run([flwr, "build", "--app", app], cwd=tmp_path, check=True, timeout=120)
    (bundle,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    assert {"LICENSE", "pyproject.toml", "flower_digits/client_app.py"} <= names
