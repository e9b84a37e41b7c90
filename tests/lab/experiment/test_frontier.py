import math

from quietbit_lab.experiment.frontier import frontier, reported, summarise


def result(label, seed, points, status="finished", **settings):
    return {
        "label": label,
        "job": f"{label}{seed}{settings}",
        "record": {
            "status": status,
            "settings": {"seed": seed, "rounds": 9, "evaluate_at": [], "delta": 1e-5, **settings},
            "points": [{"round": r, "epsilon_upper": e, "accuracy": a} for r, e, a in points],
        },
    }


def test_seeds_are_averaged_and_rounds_kept_apart():
    found = summarise(
        [
            result("I", 1, [(5, 1.0, 0.5), (9, 2.0, 0.8)]),
            result("I", 2, [(5, 1.0, 0.7), (9, 2.0, 0.8)]),
        ]
    )
    assert [(s.rounds, s.seeds) for s in found] == [(5, 2), (9, 2)]
    assert math.isclose(found[0].accuracy, 0.6)
    assert math.isclose(found[0].deviation, math.sqrt(0.02))
    assert found[1].deviation == 0


def test_the_frontier_has_no_point_that_another_beats():
    lines = frontier(
        summarise(
            [
                result("I", 1, [(9, 1.0, 0.5)], lr=1),
                result("I", 1, [(9, 1.0, 0.6)], lr=2),
                result("I", 1, [(9, 3.0, 0.55)], lr=3),
                result("I", 1, [(9, 4.0, 0.9)], lr=4),
                result("G", 1, [(9, 9.0, 0.1)]),
                result("I", 1, [(9, 0.1, 0.99)], "diverged", lr=5),
                result("N", 1, [(9, None, 0.95)]),
            ]
        )
    )
    assert [(s.epsilon_upper, s.accuracy) for s in lines["I"]] == [(1.0, 0.6), (4.0, 0.9)]
    assert len(lines["G"]) == 1
    assert math.isinf(lines["N"][0].epsilon_upper)


def test_where_a_seed_was_dropped_the_lucky_ones_do_not_count():
    found = summarise(
        [
            result("I", 1, [(5, 1.0, 0.1)], "dropped"),
            result("I", 2, [(5, 1.0, 0.3), (9, 2.0, 0.9)]),
            result("I", 1, [(5, 1.0, 0.1), (9, 2.0, 0.2)], lr=2),
        ]
    )
    assert [(s.rounds, s.seeds, s.accuracy) for s in found] == [
        (5, 2, 0.2),
        (5, 1, 0.1),
        (9, 1, 0.2),
    ]


def test_choosing_runs_say_which_points_and_the_others_what_they_are_worth():
    """The step of 2 is lucky where it chooses; that of 3 is the best of those that report."""
    lucky = [
        result("I", 9, [(5, 1.0, a), (9, 2.0, a + 0.1)], lr=lr)
        for lr, a in {1: 0.5, 2: 0.8, 3: 0.4}.items()
    ]
    worth = [
        result("I", seed, [(5, 1.0, a), (9, 2.0, a)], lr=lr)
        for seed in (1, 2)
        for lr, a in {2: 0.3, 3: 0.9}.items()
    ]
    alone = [result("G", 1, [(9, 3.0, 0.7)])]
    choosing = [one | {"chooses": True} for one in lucky]
    lines = reported(choosing + worth + alone)
    assert [(p.epsilon_upper, p.accuracy, p.seeds, p.settings["lr"]) for p in lines["I"]] == [
        (1.0, 0.3, 2, 2),
        (2.0, 0.3, 2, 2),
    ]
    assert [p.accuracy for p in lines["G"]] == [0.7]
    assert reported(lucky + worth)["I"][0].settings["lr"] == 3  # unmarked
    assert reported(choosing) == {}


def test_runs_of_several_lengths_report_one_point():
    chooses = {
        **result("I", 9, [(5, 1.0, 0.5), (9, 2.0, 0.4)], **{"planned rounds": 9}),
        "chooses": True,
    }
    short = [result("I", seed, [(5, 1.0, 0.6)], **{"planned rounds": 5}) for seed in (1, 2)]
    found = reported([chooses, *short, result("I", 3, [(5, 1.0, 0.9)], **{"planned rounds": 7})])
    assert [(p.accuracy, p.seeds) for p in found["I"]] == [(0.6, 2)]
