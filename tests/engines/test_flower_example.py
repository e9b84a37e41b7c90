"""What the example's README shows is what the example is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from quietbit import Plan
from quietbit.mechanism.registry import identity_of

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flower-digits"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_two_lines_are_those_of_the_app():
    shown = blocks("diff")
    assert len(shown) == 2
    for block in shown:
        title, *lines = block.splitlines()
        source = (EXAMPLE / title.removeprefix(" # ")).read_text(encoding="utf-8").splitlines()
        assert all(line[1:] in source for line in lines if line.startswith("+"))
        assert not any(line[1:] in source for line in lines if line.startswith("-"))


def test_the_settings_are_those_of_the_app():
    app = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    config = app["tool"]["flwr"]["app"]["config"]["quietbit"]
    shown = tomllib.loads(blocks("toml")[0])["tool"]["flwr"]["app"]["config"]["quietbit"]
    assert shown.items() <= config.items()
    plan = Plan.from_run_config({f"quietbit.{key}": value for key, value in config.items()})
    assert "quietbit.epsilon=150.0 quietbit.releases=3" in README
    # The output that is shown is of a run of today.
    assert f"650 parameters, mechanism {identity_of(plan.mechanism_for(650)).hex()[:16]}" in README


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (EXAMPLE / target).exists(), target
