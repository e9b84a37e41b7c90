"""The road of an update stays short, and the page that shows it is true."""

import importlib
import sys
from pathlib import Path

import pytest

from quietbit import Ball, calibrate

sys.path.append(str(Path(__file__).parent.parent / "docs" / "hooks"))
from walk import LAYERS, ROOT, main, one_receive, one_send

ORDER = {name: place for place, name in enumerate((*LAYERS, "ground"))}


@pytest.fixture(scope="module")
def hook():
    return importlib.import_module("architecture")


def test_a_send_passes_few_files():
    """19 files and 93 calls before there was one road; half of the files now are the kernel's."""
    walk = one_send()
    assert len(walk.files) <= 12
    assert len([file for file in walk.files if not file.startswith("kernel/")]) <= 6
    assert walk.calls <= 60  # 93 before
    assert walk.files[0] == "wire/uplink.py"
    assert "mechanism/interpolated.py" in walk.files


@pytest.mark.parametrize(("word", "most"), [("vmvu", 90), ("imvu", 116)])
def test_rotated_updates_take_few_calls_more(word, most):
    ball = Ball("l2", 1.0, 1000)
    found = calibrate(word, ball=ball, epsilon=1.0, delta=1e-5, adjacency="zero-out").mechanism
    assert one_send(found).calls <= most


def test_a_receive_passes_few_files():
    walk = one_receive()
    assert len(walk.files) <= 10  # 15 before; one has the defaults of mechanisms
    assert walk.calls <= 60  # 118 before
    assert walk.files[0] == "wire/uplink.py"


def test_the_walk_goes_down_and_meets_nothing_else():
    """Neither privacy nor design is asked while an update is sent: what it costs was settled before."""
    assert set(one_send().folders) == {"wire", "mechanism", "kernel", "ground"}
    assert all((ROOT / file).is_file() for file in (*one_send().files, *one_receive().files))


def test_the_page_shows_the_walk_as_it_is(hook):
    assert hook.PAGE.read_text(encoding="utf-8") == hook.page(), (
        "run python docs/hooks/architecture.py"
    )
    assert hook.PICTURE.read_text(encoding="utf-8") == hook.picture(), (
        "run python docs/hooks/architecture.py"
    )


def test_all_of_it_is_printed(capsys):
    main()
    printed = capsys.readouterr().out
    assert "One send: " in printed
    assert "wire/uplink.py  receive" in printed
