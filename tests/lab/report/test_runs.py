import os

import pytest

from lab.report.makers import changed, runs, write_results
from quietbit import QuietbitError
from quietbit._files import write_json
from quietbit_lab.report.runs import PlacedRun, comparisons, label_of, read_placed_runs, settings_of


def test_records_folders_of_records_and_sweeps_are_read_and_nothing_counts_twice(tmp_path):
    some = runs()[:3]
    records = tmp_path / "records"
    sweep = write_results(tmp_path / "sweep", [changed(run, "other") for run in some])
    for place, run in enumerate(some):
        write_json(records / f"{place}.json", dict(run.record))
    assert [run.label for run in read_placed_runs([records / "0.json"])] == ["Gaussian, 32 bits"]
    assert len(read_placed_runs([records, records / "1.json"])) == 3
    both = read_placed_runs([records, sweep])
    assert [(run.label, run.sweep) for run in both[3:]] == [("other", "mine")] * 3


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        ("{}", "not a run record"),
        ('{"format": "quietbit run", "version": 1}', "not complete"),
        ('{"format": "quietbit run", "version": 99}', "version 99"),
        ("no JSON", "not a run record"),
        ("[]", "not a run record"),
        ("", "not a run record"),
        (None, "Cannot read"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, content, mention):
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(QuietbitError, match=mention):
        read_placed_runs([path])


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes")
def test_what_never_ends_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("fifo", "zeros"):
        with pytest.raises(QuietbitError, match="not a regular file"):
            read_placed_runs([tmp_path / name])


def test_an_empty_folder_and_a_damaged_point_are_refused(tmp_path):
    with pytest.raises(QuietbitError, match="no runs in"):
        read_placed_runs([tmp_path])
    write_json(tmp_path / "r.json", {**runs()[0].record, "points": [{"round": 1}]})
    with pytest.raises(QuietbitError, match="damaged point"):
        read_placed_runs([tmp_path])


def test_epsilons_of_different_meaning_are_never_compared():
    private, public = runs()[0], runs()[-1]
    other = {**private.record["guarantee"], "adjacency": "replace-one"}
    moved = changed(private, guarantee=other, settings={"adjacency": "replace-one"})
    elsewhere = changed(private, task={"name": "mnist"})
    found = comparisons([private, private, moved, elsewhere, public])
    assert [(one.task["name"], one.adjacency, len(one.runs)) for one in found] == [
        ("digits", "zero-out", 3),  # the run without privacy is shown beside both of its task
        ("digits", "replace-one", 2),
        ("mnist", "zero-out", 1),
    ]
    assert len(comparisons([public])) == 1


def test_labels_say_whom_they_trust_where_that_differs():
    local = runs()[0]
    central = changed(local, guarantee={**local.record["guarantee"], "trust": "central"})
    (one,) = comparisons([local, central])
    assert [run.label for run in one.runs] == [
        "Gaussian, 32 bits (local trust)",
        "Gaussian, 32 bits (central trust)",
    ]


def test_a_strength_that_was_found_is_a_setting():
    gaussian, sign, imvu = runs()[0], runs()[6], runs()[12]
    assert (
        settings_of(gaussian.record)["noise_multiplier"]
        == gaussian.record["mechanism"]["noise_multiplier"]
    )
    assert (
        settings_of(sign.record)["noise_multiplier"]
        == sign.record["mechanism"]["inner"]["noise_multiplier"]
    )
    assert (
        settings_of(imvu.record)["design_epsilon"]
        == imvu.record["mechanism"]["design"]["design"]["spec"]["epsilon"]
    )
    given = changed(gaussian, settings={"noise_multiplier": 7.0})
    assert settings_of(given.record)["noise_multiplier"] == 7.0


def test_scores_along_the_way_are_not_chosen():
    run = runs()[0]
    assert [point["round"] for point in run.record["points"]] == [2, 4, 6]
    assert [point["round"] for point in run.plain(whole=False)["record"]["points"]] == [6]
    asked = changed(run, settings={"evaluate_at": [4]})
    assert [point["round"] for point in asked.plain(whole=False)["record"]["points"]] == [4, 6]
    assert not changed(run, status="diverged").ended
    dropped = changed(asked, status="dropped")
    assert [point["round"] for point in dropped.plain(whole=False)["record"]["points"]] == [4]
    assert dropped.plain()["record"]["status"] == "dropped"
    assert changed(run, status="target reached").ended


def test_a_mechanism_of_no_known_name_keeps_its_own():
    record = {"settings": {"mechanism": "dice"}, "mechanism": {"bits": 3}}
    assert label_of(record) == "dice, 3 bits"
    assert label_of({"settings": {"mechanism": "vmvu"}, "mechanism": {"bits": 0}}) == "vector MVU"
    assert PlacedRun("x", {"settings": {}}).mechanism == ""
