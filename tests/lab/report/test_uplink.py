from lab.report.makers import runs
from quietbit_lab.plot.figure import save_figure
from quietbit_lab.report.plots import plot_uplink, shown_size
from quietbit_lab.report.runs import settings_within
from refusals import refuses


def test_a_point_per_mechanism_at_its_bytes(tmp_path):
    found = [
        (point, run.record["bytes_per_client"]) for point, run in settings_within(runs(), 20.0)
    ]
    figure = plot_uplink(found, "title")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "Gaussian, 32 bits",
        "I-MVU, 1 bit",
        "SignSGD, 1 bit",
        "without noise",
    ]
    assert save_figure(figure, tmp_path / "figure.svg").read_bytes().startswith(b"<?xml")
    with refuses("number of settings within the target", 0):
        plot_uplink([], "title")


def test_sizes_for_people():
    assert [shown_size(v) for v in (0, 100, 2000, 5e6, 1e13)] == [
        "",
        "100 B",
        "2 kB",
        "5 MB",
        "10000 GB",
    ]
