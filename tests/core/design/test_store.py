"""What is stored, a design or a profile: the same numbers come back, and nothing that was changed."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quietbit.design.profile import Profile
from quietbit.design.solve import solve
from quietbit.design.store import cached, remember
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import InvalidDesignFile, QuietbitError
from quietbit.target import Target

SPEC = DesignSpec(8, 2, 1.0)
TARGET = Target(1.2345, 1e-5, "zero-out", releases=3)
PROFILE = Profile.from_weights([-0.5, 0.25, 1.0], [1.0, 2.0, 3.0, 5.0])
# What is stored, and what it is kept for.
STORED: list[tuple[Any, Any, Any]] = [
    (solve(SPEC), SPEC, DesignSpec(8, 2, 1.25)),
    (PROFILE, TARGET, Target(1.2345, 1e-6, "zero-out", releases=3)),
]


@pytest.fixture(params=STORED, ids=["design", "profile"])
def stored(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETBIT_CACHE", str(tmp_path / "cache"))


def test_a_file_comes_back_as_the_same_numbers(stored: Any, tmp_path: Path) -> None:
    made = stored[0]
    path = made.save(tmp_path / "one")
    loaded = type(made).load(path)
    assert loaded == made
    assert loaded.canonical() == made.canonical()
    assert made.identity() == hashlib.sha256(made.canonical().encode()).hexdigest()
    assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["again", "one"]


def test_the_identity_of_old_profiles_is_on_a_line_of_its_own() -> None:
    assert Profile.parse(f"{PROFILE.canonical()}\n{PROFILE.identity()}\n", "it") == PROFILE
    with pytest.raises(InvalidDesignFile, match="was changed"):
        Profile.parse(f"{PROFILE.canonical()}\n{'0' * 64}\n", "it")


def changed(text: str) -> Iterator[tuple[str, str]]:
    """What is said of texts that are not the stored one, and the texts."""
    yield "not complete JSON", text[: len(text) // 2]
    yield "not complete JSON", ""
    yield "not complete JSON", "[" * 100_000
    yield "not plain text", text.replace("quietbit", "quïetbit")
    yield "larger than", text + "x" * 2**26
    yield "its format is not", "17"
    yield "its format is not", "[]"
    content = json.loads(text)
    yield "was changed", json.dumps({**content, "note": "x"})
    yield "was changed", json.dumps({**content, "identity": "0" * 64})
    yield "has version 2", json.dumps({**content, "version": 2})
    wrong = "is not a|was changed|has version"
    for key, value in content.items():
        yield wrong, json.dumps({name: part for name, part in content.items() if name != key})
        yield wrong, json.dumps({**content, key: "x"})
        if isinstance(value, list):
            yield wrong, json.dumps({**content, key: value[:-1]})
            yield wrong, json.dumps({**content, key: [[0.5], *value[1:]]})
            yield wrong, json.dumps({**content, key: [math.nan, *value[1:]]})
            yield wrong, json.dumps({**content, key: [value[0], *value[:-1]]})


def test_what_was_changed_is_refused(stored: Any, tmp_path: Path) -> None:
    made = stored[0]
    text = made.save(tmp_path / "good").read_text()
    for reason, bad in changed(text):
        (tmp_path / "bad").write_text(bad, encoding="latin-1")
        with pytest.raises(InvalidDesignFile, match=reason) as refusal:
            type(made).load(tmp_path / "bad")
        assert "\n" not in str(refusal.value), bad
        assert str(tmp_path / "bad") in str(refusal.value), bad


def test_files_that_cannot_be_read_or_written_are_named(stored: Any, tmp_path: Path) -> None:
    made = stored[0]
    with pytest.raises(InvalidDesignFile, match=r"Cannot read .*nowhere"):
        type(made).load(tmp_path / "nowhere")
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "missing" / "one", tmp_path / "taken"):
        with pytest.raises(QuietbitError, match="Cannot write"):
            made.save(path)
    assert os.listdir(tmp_path) == ["taken"]


def test_the_cache_keeps_one_per_key_and_ignores_damage(stored: Any, tmp_path: Path) -> None:
    made, key, other = stored
    assert cached(type(made), key) is None
    remember(made, key)
    assert cached(type(made), key) == made
    assert cached(type(made), other) is None
    (file,) = (tmp_path / "cache" / "designs").iterdir()
    file.write_text("nonsense", encoding="ascii")
    assert cached(type(made), key) is None


def _write_often(spec: DesignSpec) -> bool:
    made = solve(spec)
    for _ in range(30):
        remember(made, spec)
        if cached(Design, spec) != made:
            return False
    return True


def test_concurrent_writers_never_show_half_a_file(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert all(pool.map(_write_often, [DesignSpec(3, 1, 1.75)] * 3))
    assert len(os.listdir(tmp_path / "cache" / "designs")) == 1
