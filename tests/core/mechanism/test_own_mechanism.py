"""A mechanism of a user's own, in a package outside this one and known by its entry point, works
everywhere.

The package is the first block of the how-to page, in a folder on the path with the two files that
an installer leaves.
"""

import importlib
import re
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest

import quietbit
import quietbit.target
from plans import flat_plan
from quietbit.cli.main import main
from quietbit.mechanism import registry
from quietbit.mechanism.calibrate import alternatives
from quietbit_lab.auditor.audit import audit
from refusals import refuses

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-your-own-mechanism.md"
GIVEN = {
    "clip": 1.0,
    "norm": "l1",
    "adjacency": "zero-out",
    "epsilon": 6.0,
    "delta": 0.0,
    "cohort": 20,
}


def forget() -> None:
    """Let the registry read entry points anew."""
    for kept in (registry._packages, registry._package_kinds, registry._loaded):
        kept.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package on the path; the registry reads entry points anew, and forgets them
    afterwards.
    """
    text = PAGE.read_text(encoding="utf-8")
    block, group = (
        re.search(rf"^```{kind}\n(.*?)^```", text, re.M | re.S).group(1)
        for kind in ("python", "toml")
    )
    (tmp_path / "linear_bit.py").write_text(block)
    folder = tmp_path / "linear_bit-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: linear-bit\nVersion: 1.0\n")
    # pyproject.toml's table, as an installer writes it down
    points = group.replace("project.entry-points.", "").replace('"', "")
    (folder / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "linear_bit", raising=False)
    forget()
    yield importlib.import_module("linear_bit")
    monkeypatch.undo()
    sys.modules.pop("linear_bit", None)
    forget()
    assert "linear-bit" not in registry.families()


def test_its_word_leads_to_it(installed):
    assert registry.family("linear-bit") is installed.FAMILY


def test_uplink_and_audit(installed):
    mechanism = installed.LinearBit(quietbit.Ball("l1", 30), 0.9)
    uplink = quietbit.Uplink(mechanism)
    update = np.linspace(-1, 1, 30) / 20
    mean = uplink.receive([uplink.send(update, quietbit.seeded_rng(k)) for k in range(400)])
    deviation = (mechanism.variance(0.0) / 400) ** 0.5
    assert np.abs(mean - update).max() < 7 * deviation  # 30 coordinates: below 1e-9
    with pytest.raises(quietbit.InvalidParameter, match="finite"):
        uplink.send(np.full(30, np.nan))
    found = audit(mechanism, "replace-one", delta=0.0, samples=200, rng=quietbit.seeded_rng(2))
    assert found.passed


def test_calibrate_and_plan_meet_the_same_target(installed):
    ball = quietbit.Ball("l1", 39)
    found = quietbit.calibrate(
        "linear-bit", ball=ball, epsilon=6.0, delta=0.0, adjacency="zero-out", releases=4
    )
    assert 6 * (1 - 1e-4) < found.guarantee.epsilon_upper <= 6
    assert flat_plan("linear-bit", **GIVEN, releases=4).mechanism_for(39) == found.mechanism
    by_hand = flat_plan("linear-bit", **{**GIVEN, "epsilon": None}, design_epsilon=1.5)
    assert by_hand.release(by_hand.mechanism_for(39)).epsilon(0.0) == pytest.approx(1.5, rel=1e-9)
    with refuses("mechanism.bits", 2):
        flat_plan("linear-bit", **GIVEN, bits=2)
    with refuses("mechanism", "linear-bit"):
        flat_plan("linear-bit", **GIVEN, trust="secure-aggregation")


def test_command_line(installed, capsys, tmp_path):
    words = "--mechanism linear-bit --norm l1 --adjacency zero-out --epsilon 6 --delta 0"
    assert main(["calibrate", *words.split(), "--releases", "4", "--dimension", "39"]) == 0
    assert "linear-bit on an l1 ball" in capsys.readouterr().out
    out = str(tmp_path / "run.json")
    more = f"--lr 0.1 --rounds 4 --cohort 300 --seed 1 --out {out}"
    assert main(["train", *words.split(), *more.split()]) == 0
    assert main(["train", "--repeat", out, "--json"]) == 0


def test_without_the_package_the_word_is_refused():
    with refuses("mechanism", "linear-bit"):
        registry.family("linear-bit")


def offer(folder, family, kind=""):
    """Write one more entry point of each group into the package."""
    points = folder / "linear_bit-1.0.dist-info" / "entry_points.txt"
    text = points.read_text().replace("[quietbit.mechanisms]", f"[quietbit.mechanisms]\n{family}")
    points.write_text(f"{text}\n{kind}\n")
    forget()


UNSEEN = "raise RuntimeError('imported')\n"
BALL = quietbit.Ball("l2", 2**12)
TARGET = {"ball": BALL, "epsilon": 1.0, "delta": 1e-5, "adjacency": "zero-out"}


def test_a_broken_package_breaks_nothing_else(installed, tmp_path):
    """Its word is listed and refused by name when it is asked for; all others are found,
    calibrated and rebuilt.
    """
    (tmp_path / "broken.py").write_text("raise RuntimeError('half installed')\n")
    offer(tmp_path, "broken = broken:FAMILY")
    assert "broken" in registry.families()
    found = quietbit.calibrate("imvu", **TARGET).mechanism
    stranger = installed.LinearBit(quietbit.Ball("l1", 30), 0.5)
    for mechanism, word in ((found, "imvu"), (stranger, "linear-bit")):
        assert registry.build(registry.describe(mechanism)) == mechanism
        assert registry.family_of(mechanism) == word
    with refuses("mechanism 'broken'", "broken:FAMILY"):
        registry.family("broken")
    ways = alternatives(quietbit.Ball("l1", 30), quietbit.target.Target(1.0, 0.0, "zero-out"))
    refused = next(way.refusal for way in ways if way.mechanism == "broken")
    assert refused.startswith("mechanism 'broken' cannot be used")
    assert any(way.calibration for way in ways if way.mechanism == "imvu")


def test_words_are_listed_without_an_import(installed, tmp_path):
    (tmp_path / "unseen.py").write_text(UNSEEN)
    offer(tmp_path, "unseen = unseen:FAMILY")
    sys.modules.pop("linear_bit", None)
    assert {"unseen", "linear-bit", "imvu"} <= set(registry.families())
    assert registry.family("vmvu").name == "vmvu"
    assert not {"linear_bit", "unseen"} & set(sys.modules)


def test_a_description_imports_the_one_module_that_it_names(installed, tmp_path):
    """Neither an unknown kind nor one of a family that is not allowed imports a module of any
    package.
    """
    (tmp_path / "unseen.py").write_text(UNSEEN)
    description = registry.describe(installed.LinearBit(quietbit.Ball("l1", 30), 0.5))
    offer(tmp_path, "unseen = unseen:FAMILY", "unseen.Hidden = unseen:Hidden")
    sys.modules.pop("linear_bit", None)
    scouted = {"kind": "Scouted", "inner": description, "every": 20, "truth": 0.5}
    assert registry.described_family(description) == "linear-bit"
    assert registry.described_family(scouted) == "linear-bit"
    assert registry.described_family({"kind": "Hidden"}) == "unseen"
    assert registry.described_family({"kind": "Nothing"}) == ""
    for kind, allowed in (
        ("Nothing", None),
        ("LinearBit", ()),
        ("LinearBit", ("imvu", "unseen")),
        ("Hidden", ("imvu",)),
    ):
        with refuses("kind of the mechanism"):
            registry.build({**description, "kind": kind}, allowed)
    nested = {**description, "ball": {"kind": "Hidden"}}
    with refuses("kind of the mechanism"):
        registry.build(nested, ("linear-bit",))
    assert not {"linear_bit", "unseen"} & set(sys.modules)
    laboratory = {name for name in sys.modules if name.startswith("quietbit_lab.baseline")}
    with refuses("kind of the mechanism"):
        registry.build({"kind": "Nothing"})
    mechanism = registry.build(description, ("linear-bit",))
    assert registry.family_of(mechanism) == "linear-bit"
    assert laboratory == {name for name in sys.modules if name.startswith("quietbit_lab.baseline")}


def test_a_package_cannot_take_a_word_or_a_kind_of_the_library(installed, tmp_path):
    offer(tmp_path, "imvu = linear_bit:FAMILY")
    assert registry.family("imvu").name == "imvu"
    offer(tmp_path, "imvu = linear_bit:FAMILY", "imvu.Gaussian = linear_bit:LinearBit")
    given = quietbit.Gaussian(BALL, 1.0)
    assert registry.build(registry.describe(given)) == given
    offer(tmp_path, "other = linear_bit:FAMILY")
    with refuses("name of linear_bit:FAMILY", "linear-bit"):
        registry.family("other")
    offer(tmp_path, "linear-bit = elsewhere:FAMILY")

    @attrs.frozen
    class Gaussian(quietbit.Mechanism):
        ball: quietbit.Ball
        noise_multiplier: float

    Gaussian.__abstractmethods__ = frozenset()
    with refuses("class of mechanism"):
        registry.identity_of(Gaussian(BALL, 1.0))


def test_two_packages_with_one_word_are_refused(installed, tmp_path):
    folder = tmp_path / "second-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: second\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[quietbit.mechanisms]\nlinear-bit = second:FAMILY\n")
    forget()
    with refuses("packages with a mechanism 'linear-bit'", "linear_bit:FAMILY and second:FAMILY"):
        registry.family("linear-bit")


def test_it_is_one_short_file_of_public_imports(installed):
    block = Path(installed.__file__).read_text(encoding="utf-8")
    assert len(block.splitlines()) <= 75
    homes = set(re.findall(r"^from (quietbit\S*) import", block, re.M))
    assert homes == {"quietbit", "quietbit.mechanism"}
