import json
import os

import pytest

from quietbit.design.profile import Profile
from quietbit.design.profiles import shipped_profile
from quietbit.design.store import cached, remember
from quietbit.errors import InvalidDesignFile, QuietbitError
from quietbit.target import Target
from unit.design.catalogue_maker import catalogue_lines, catalogue_targets

PROFILE = Profile.from_weights([-0.5, 0.25, 1.0], [1.0, 2.0, 3.0, 5.0])
TARGET = Target(1.2345, 1e-5, "zero-out", releases=3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIETBIT_CACHE", str(tmp_path / "cache"))


def test_a_file_comes_back_as_the_same_profile(tmp_path):
    path = PROFILE.save(tmp_path / "one.profile")
    assert Profile.load(path).identity() == PROFILE.identity()
    assert os.listdir(tmp_path) == ["one.profile"]
    path.write_text(f"{PROFILE.canonical()}\n{PROFILE.identity()}\n", encoding="ascii")  # as they were written once
    assert Profile.load(path).identity() == PROFILE.identity()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("0.25", "0.5"), "not a usable profile"),
        (lambda text: text[:-5], "not complete JSON"),
        (lambda text: text.replace('"identity":"', '"identity":"0'), "was changed"),
        (lambda text: text.replace('"identity"', '"identify"'), "was changed"),
        (lambda text: f"{PROFILE.canonical()}\n{'0' * 64}\n", "was changed"),
        (lambda text: PROFILE.canonical(), "was changed"),
        (lambda text: text.replace('"version":1', '"version":7'), "has version 7"),
        (lambda text: "", "not complete JSON"),
        (lambda text: text + "x" * 2**20, "larger than"),
        (lambda text: text.replace("quietbit", "quïetbit"), "not plain text"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path, change, reason):
    path = PROFILE.save(tmp_path / "one.profile")
    path.write_text(change(path.read_text(encoding="ascii")), encoding="utf-8")
    with pytest.raises(InvalidDesignFile, match=reason):
        Profile.load(path)


def test_a_missing_file_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(InvalidDesignFile, match="Cannot read"):
        Profile.load(tmp_path / "none.profile")
    with pytest.raises(QuietbitError, match="Cannot write"):
        PROFILE.save(tmp_path / "none" / "one.profile")


def test_the_cache_keeps_one_profile_per_target_and_ignores_damage(tmp_path):
    assert cached(Profile, TARGET) is None
    remember(PROFILE, TARGET)
    found = cached(Profile, TARGET)
    assert found is not None
    assert found.identity() == PROFILE.identity()
    assert cached(Profile, Target(1.2345, 1e-6, "zero-out", releases=3)) is None
    (file,) = (tmp_path / "cache" / "designs").iterdir()
    file.write_text("nonsense", encoding="ascii")
    assert cached(Profile, TARGET) is None


def test_every_listed_target_is_shipped_and_no_other():
    targets = list(catalogue_targets())
    assert len(targets) == len(set(targets)) == 2 * 6 * (1 + 2 * 7 + 1)
    assert all(shipped_profile(target) is not None for target in targets if target.releases in (1, 50))
    assert shipped_profile(TARGET) is None


def test_the_catalogue_s_text_is_made_of_its_profiles():
    text = catalogue_lines(iter([(TARGET, PROFILE)]))
    assert text["replace-one"] == "\n"
    (line,) = text["zero-out"].splitlines()
    entry = json.loads(line)
    assert (entry["epsilon"], entry["delta"], entry["releases"]) == (1.2345, 1e-5, 3)
    assert entry["identity"] == PROFILE.identity()
    restored = Profile.restored({**entry["profile"], "identity": entry["identity"]}, "the line")
    assert restored.identity() == PROFILE.identity()
