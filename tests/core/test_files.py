import json

import pytest

import quietbit
from quietbit._files import write_json, write_whole


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "run.json"
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(quietbit.QuietbitError, match="No space left"):
        write_whole(path, fail)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]
