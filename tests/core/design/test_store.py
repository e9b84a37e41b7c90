import json
import multiprocessing
import os

import pytest

from quietbit.design.solve import solve
from quietbit.design.store import remember
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import InvalidDesignFile, QuietbitError


@pytest.fixture
def design() -> Design:
    return solve(DesignSpec(8, 2, 1.0))


def test_round_trip_is_exact(design, tmp_path):
    path = design.save(tmp_path / "design.json")
    loaded = Design.load(path)
    assert loaded.identity() == design.identity()
    assert loaded.probabilities.tolist() == design.probabilities.tolist()
    assert loaded.spec == design.spec
    again = loaded.save(tmp_path / "again.json")
    assert again.read_bytes() == path.read_bytes()


def test_the_identity_is_sha256_of_the_canonical_text(design):
    import hashlib

    assert design.identity() == hashlib.sha256(design.canonical().encode()).hexdigest()
    assert json.loads(design.canonical())["spec"]["epsilon"] == 1.0


def tampered(text: str):
    content = json.loads(text)
    yield "truncated", text[: len(text) // 2]
    yield "empty", ""
    yield "number", "17"
    yield "list", "[]"
    yield "pickle", "\x80\x04"
    for key in content:
        yield f"without {key}", json.dumps({k: v for k, v in content.items() if k != key})
    yield "extra", json.dumps({**content, "note": "x"})
    yield "version", json.dumps({**content, "version": 2})
    yield "epsilon", json.dumps({**content, "spec": {**content["spec"], "epsilon": 0.5}})
    yield "spec", json.dumps({**content, "spec": {**content["spec"], "colour": 1}})
    yield "levels", json.dumps({**content, "spec": {**content["spec"], "input_levels": 9}})
    bent = [list(row) for row in content["probabilities"]]
    bent[0][0] += 1e-9
    yield "probability", json.dumps({**content, "probabilities": bent})
    yield "text", json.dumps({**content, "probabilities": "x"})
    yield "ragged", json.dumps({**content, "probabilities": [[0.5], [0.5, 0.5]]})
    yield "nan", text.replace(str(content["probabilities"][0][0]), "NaN", 1)
    yield "deep", "[" * 100_000


def test_a_changed_file_is_refused(design, tmp_path):
    good = design.save(tmp_path / "good.json").read_text()
    for name, text in tampered(good):
        path = tmp_path / "bad.json"
        path.write_text(text, encoding="latin-1")
        with pytest.raises(InvalidDesignFile) as refusal:
            Design.load(path)
        assert "\n" not in str(refusal.value), name
        assert "bad.json" in str(refusal.value), name


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidDesignFile, match=r"nowhere\.json"):
        Design.load(tmp_path / "nowhere.json")


def test_nothing_is_left_where_nothing_can_be_written(design, tmp_path):
    with pytest.raises(QuietbitError, match="Cannot write"):
        design.save(tmp_path / "missing" / "design.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(QuietbitError, match="Cannot write"):
        design.save(tmp_path / "taken")
    assert sorted(os.listdir(tmp_path)) == ["taken"]


def _write_often(spec: DesignSpec) -> bool:
    from quietbit.design.store import cached

    made = solve(spec)
    for _ in range(30):
        remember(made, spec)
        found = cached(Design, spec)
        if found is None or found.identity() != made.identity():
            return False
    return True


def test_concurrent_writers_never_show_half_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIETBIT_CACHE", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert all(pool.map(_write_often, [DesignSpec(3, 1, 1.75)] * 3))
    assert len(os.listdir(tmp_path / "designs")) == 1
