import os
import subprocess
import sys

import pytest

import quietbit
from quietbit_lab.experiment.lines import append_line, only_writer, read_lines


def test_lines_are_appended_and_read(tmp_path):
    path = tmp_path / "results.jsonl"
    assert read_lines(path) == []
    for k in range(3):
        append_line(path, {"k": k})
    assert read_lines(path) == [{"k": 0}, {"k": 1}, {"k": 2}]


@pytest.mark.parametrize("torn", [b'{"k": 1', b"{", b'{"k": "' + b"x" * 9000])
def test_a_torn_line_is_skipped_and_then_removed(tmp_path, torn):
    path = tmp_path / "results.jsonl"
    append_line(path, {"k": 0})
    with open(path, "ab") as file:
        file.write(torn)
    assert read_lines(path) == [{"k": 0}]
    append_line(path, {"k": 2})
    assert read_lines(path) == [{"k": 0}, {"k": 2}]


def test_a_damaged_line_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"k": 0}\nnonsense\n{"k": 1}\n')
    with pytest.raises(quietbit.QuietbitError, match="Line 2"):
        read_lines(path)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    append_line(path, {"k": 0})
    before = path.read_bytes()

    def refuse(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(quietbit.QuietbitError, match=r"No space left.*intact"):
        append_line(path, {"k": 1})
    assert path.read_bytes() == before


def test_one_writer_at_a_time(tmp_path):
    second = only_writer(tmp_path / "runs")
    with (
        only_writer(tmp_path / "runs"),
        pytest.raises(quietbit.QuietbitError, match="Another process"),
    ):
        second.__enter__()
    with only_writer(tmp_path / "runs"):
        pass


def test_importing_needs_no_posix_locks():
    code = "import sys; sys.modules['fcntl'] = None; import quietbit_lab.experiment.lines"
    subprocess.run([sys.executable, "-c", code], check=True)
