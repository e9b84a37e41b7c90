import json
import math

import pytest

from quietbit.cli.console import Row, column_table, progress_bar, record, rounded_up, show_json


@pytest.mark.parametrize("value", [1.0, 1 / 3, 2.0000001, 1e-9, 12345.678, 3e12, 0.0, 5e-324])
@pytest.mark.parametrize("digits", [2, 6, 12])
def test_a_bound_is_never_shown_below_its_value(value, digits):
    assert float(rounded_up(value, digits)) >= value
    assert float(rounded_up(value, digits)) <= value * (1 + 10.0 ** (1 - digits)) + 5e-324


def test_infinity_is_said_in_words():
    assert rounded_up(math.inf) == "infinite"


def test_json_is_strict(capsys):
    show_json({"a": [math.inf, math.nan, 1.5], "b": (True, None)})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5], "b": [True, None]}


def test_user_text_is_not_read_as_markup(capsys):
    record("[bold]title[/bold]", [Row("path", "path", "[red]x[/red].json")], False)
    column_table("t", ("a", "b"), [("[red]y[/red]", "1")])
    out = capsys.readouterr().out
    assert "[bold]title[/bold]" in out
    assert "[red]x[/red].json" in out
    assert "[red]y[/red]" in out


def test_progress_stays_off_stdout_and_off_pipes(capsys):
    with progress_bar("Working") as report:
        report(0.5, "half")
    with progress_bar("Working", lines=True) as report:
        report(0.5, "half")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Working: half\n")
