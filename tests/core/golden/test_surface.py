"""What others build on stays: a name, a key, an option or a field that is gone fails here."""

import json

import pytest

from core.golden.surface import STORED, surface

pytest.importorskip("flwr", reason="needs the flower extra")
pytest.importorskip("nvflare", reason="needs the nvflare extra")


def leaves(value, path=()):
    """Every word of the surface with its place."""
    if isinstance(value, dict):
        return {leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))}
    return {(*path, word) for word in value}


def test_nothing_that_others_name_is_gone():
    stored = leaves(json.loads(STORED.read_text()))
    missing = sorted(stored - leaves(surface()))
    assert not missing, (
        f"gone (docs/reference/stability.md; before a release: tests/core/golden/surface.py): {missing}"
    )


def test_a_name_that_goes_is_noticed():
    now = surface()
    now["names"]["quietbit"].remove("Uplink")
    assert leaves(json.loads(STORED.read_text())) - leaves(now) == {("names", "quietbit", "Uplink")}
