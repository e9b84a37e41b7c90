"""A name of an earlier version is refused with the name that it has now, which exists."""

import importlib
import re
from inspect import signature
from pathlib import Path

import pytest

import quietbit
from federation.node.makers import write_policy
from quietbit.cli import main
from quietbit.errors import InvalidParameter
from quietbit.federation import plan
from quietbit.federation.plan import KEYS, Plan
from quietbit.mechanism import calibrate
from quietbit.node import Policy, policy
from quietbit.node.policy import PolicyError

PACKAGES = ("quietbit", "quietbit.flower", "quietbit.nvflare")


def now(text):
    """Return the new name in what a table says; empty where a name is gone."""
    found = re.match(r"now ([\w.-]+)", text)
    return found.group(1) if found else ""


def listed(package):
    table = importlib.import_module(package).RENAMED
    return table


@pytest.mark.parametrize("package", PACKAGES)
def test_a_public_name(package):
    module = importlib.import_module(package)
    assert listed(package)
    for old, new in listed(package).items():
        with pytest.raises(ImportError, match=re.escape(f"{package}.{old} is now {new}")):
            getattr(module, old)
        assert old not in module.__all__
        assert re.match(r"\w+", new).group() in module.__all__


@pytest.mark.parametrize("old", calibrate.RENAMED)
def test_a_keyword_of_calibrate(old):
    keywords = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "zero-out", old: 64}
    with pytest.raises(InvalidParameter) as refusal:
        quietbit.calibrate("imvu", ball=quietbit.Ball("l2", 1000), **keywords)
    assert str(refusal.value) == f"{old} is {calibrate.RENAMED[old]}."
    assert now(calibrate.RENAMED[old]) in signature(quietbit.calibrate).parameters


def test_an_unknown_keyword_of_calibrate():
    keywords = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "zero-out", "kept": 64}
    with pytest.raises(TypeError, match="'kept'"):
        quietbit.calibrate("imvu", ball=quietbit.Ball("l2", 1000), **keywords)


@pytest.mark.parametrize("prefix", ["", "quietbit."])
@pytest.mark.parametrize("old", plan.RENAMED)
def test_a_key_of_a_plan(old, prefix):
    tables = {key.partition(".")[0] for key in KEYS}
    key = old if "." in old or old.partition(".")[0] in tables else f"{old}.any"
    config = {f"{prefix}{key}": 1}
    with pytest.raises(InvalidParameter) as refusal:
        Plan.read(config, prefix)
    assert refusal.value.name == prefix + old
    assert str(refusal.value) == f"{prefix}{old} is {plan.RENAMED[old]}."
    assert old not in KEYS
    new = now(plan.RENAMED[old])
    assert not new or new in KEYS


@pytest.mark.parametrize("old", policy.RENAMED)
def test_a_key_of_a_policy(old, tmp_path):
    path = Path(write_policy(tmp_path))
    path.write_text(path.read_text() + f"{old} = 1\n")
    with pytest.raises(PolicyError, match=re.escape(f"{old} is {policy.RENAMED[old]}.")):
        Policy.load(path)
    assert old not in policy.KEYS.values()
    new = now(policy.RENAMED[old])
    assert not new or new in policy.KEYS.values()
    with pytest.raises(InvalidParameter) as refusal:
        policy.init(
            tmp_path / "other.toml",
            epsilon=8.0,
            adjacency="zero-out",
            largest_clip=1.0,
            releases=1,
            releases_per_day=1,
            **{old.replace("-", "_"): 1},
        )
    assert refusal.value.remedy == policy.RENAMED[old]


@pytest.mark.parametrize("old", main.RENAMED)
def test_an_option(old, capsys):
    commands = {
        "--answer-seconds": ["node", "init", "policy.toml"],
        "--keep": ["calibrate", "--epsilon", "1", "--delta", "0", "--adjacency", "zero-out"],
        "--radius": ["calibrate", "--epsilon", "1", "--delta", "0", "--adjacency", "zero-out"],
        "--clip": ["compare", "--epsilon", "1", "--adjacency", "zero-out"],
    }
    assert main.main([*commands[old], old, "1"]) == main.BAD_INPUT
    assert capsys.readouterr().err == f"{old} is {main.RENAMED[old]}.\n"
