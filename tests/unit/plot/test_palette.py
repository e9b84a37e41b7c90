import pytest

from quietbit.plot.palette import MECHANISMS, OTHERS, looks


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("look", [*MECHANISMS.values(), *OTHERS])
def test_colours_are_seen_on_their_background(look):
    assert contrast(look.light, "#ffffff") >= 3
    assert contrast(look.dark, "#191d26") >= 3


def test_a_mechanism_keeps_its_look_and_a_second_run_of_it_differs():
    one, other, again, stranger, second = looks(["imvu", "gaussian", "imvu", "new", "newer"])
    assert one == MECHANISMS["imvu"]
    assert looks(["gaussian", "imvu"])[1] == one
    assert other.marker != one.marker
    assert (again.light, again.dash) != (one.light, one.dash)
    assert contrast(again.light, "#ffffff") >= 3
    assert stranger != second
    assert looks([]) == []
    for name in MECHANISMS:
        four = looks([name] * 4)
        assert len({look.light for look in four}) == len({look.dark for look in four}) == 4
        assert min(contrast(look.light, "#ffffff") for look in four) >= 3
        assert min(contrast(look.dark, "#191d26") for look in four) >= 3
    assert one.line == {"color": one.light, "linestyle": "solid", "marker": "o"}
