import json

import numpy as np
import pytest

import quietbit
from cli.kit import assert_refused, shell


@pytest.fixture
def saved(tmp_path):
    return quietbit.solve(quietbit.DesignSpec(2, 1, 1.0)).save(tmp_path / "d.json")


def test_a_good_file(capsys, saved):
    result = shell(capsys, "certify", saved)
    assert (result.code, result.err) == (0, "")
    assert "yes" in result.out
    assert shell(capsys, "certify", saved, "--json", "--no-bound").json["meets_spec"] is True


def test_a_design_that_reveals_more_than_its_spec_exits_1(capsys, tmp_path):
    honest = quietbit.solve(quietbit.DesignSpec(2, 1, 2.0))
    boast = quietbit.Design(quietbit.DesignSpec(2, 1, 1.0), honest.probabilities, honest.alphabet)
    result = shell(capsys, "certify", boast.save(tmp_path / "boast.json"), "--json")
    assert result.code == 1
    assert result.json["meets_spec"] is False
    assert result.json["epsilon_upper"] == pytest.approx(2.0)


def test_what_is_no_design_is_refused(capsys, tmp_path, saved):
    text = saved.read_text()
    content = json.loads(text)
    content["alphabet"][0] += 1e-9
    bad = {
        "missing.json": None,
        "empty.json": "",
        "cut.json": text[: len(text) // 2],
        "tampered.json": json.dumps(content),
        "other.json": '{"format": "something else"}',
        "list.json": "[1, 2]",
    }
    for name, written in bad.items():
        if written is not None:
            (tmp_path / name).write_text(written)
        assert_refused(shell(capsys, "certify", tmp_path / name), name)
    (tmp_path / "binary.json").write_bytes(np.arange(256, dtype=np.uint8).tobytes())
    assert_refused(shell(capsys, "certify", tmp_path / "binary.json"), "binary.json")
    assert_refused(shell(capsys, "certify", tmp_path), str(tmp_path))
