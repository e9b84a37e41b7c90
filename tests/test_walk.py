"""The path of an update stays short, and the page that shows it is up to date."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "docs" / "hooks"))
from walk import LAYERS, ROOT, calibrated, main, one_receive, one_send

ORDER = {name: place for place, name in enumerate((*LAYERS, "ground"))}


@pytest.fixture(scope="module")
def hook():
    return importlib.import_module("architecture")


def test_a_send_passes_few_files():
    walk = one_send()
    assert len(walk.files) <= 12
    assert len([file for file in walk.files if not file.startswith("kernel/")]) <= 6
    assert walk.files[0] == "wire/uplink.py"
    assert "mechanism/interpolated.py" in walk.files


@pytest.mark.parametrize(("word", "most"), [("vmvu", 84), ("imvu", 52)])
def test_a_send_takes_few_calls(word, most):
    assert one_send(calibrated(word)).calls <= most


def test_a_receive_passes_few_files():
    walk = one_receive()
    assert len(walk.files) <= 12
    assert walk.calls <= 71
    assert walk.files[0] == "wire/uplink.py"


def test_the_walk_goes_down_and_meets_nothing_else():
    """Neither privacy nor design is called by a send: its cost is fixed before."""
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
