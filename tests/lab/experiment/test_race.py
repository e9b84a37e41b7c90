"""Stages of a sweep: who chooses, what is reported, and that nothing is run twice."""

import pytest

import quietbit
from federation.simulate.makers import small_problem
from quietbit_lab.experiment.grid import Job, read_sweep
from quietbit_lab.experiment.race import reporting, run_stages
from quietbit_lab.experiment.record import Setting
from quietbit_lab.experiment.sweep import finished, pending, run_sweep
from quietbit_lab.task.batch_sweep import BatchTogether, run_batches

FILE = """
name = "small"
[task]
name = "clusters"
[common]
cohort = 20
clip = 1
rounds = [2, 4, 6]
lr = [0.02, 0.3]
delta = 1e-5
adjacency = "zero-out"
seeds = [1, 2]
[choose]
seeds = [11]
drop_behind = 90
draw = "sums"
[report]
apart = 1.01
[reduced]
seeds = [5]
[[grid]]
label = "Gaussian"
mechanism = "gaussian"
noise_multiplier = [1, 4]
[[grid]]
label = "SignSGD"
mechanism = "sign"
noise_multiplier = 2
lr = [0.01, 0.1]
"""


def make_problem(task, seed):
    return small_problem()


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    return read_sweep(path)


def written(tmp_path, before, after):
    assert before in FILE
    path = tmp_path / "other.toml"
    path.write_text(FILE.replace(before, after))
    return path


def test_a_file_with_choosing_seeds(sweep, tmp_path):
    assert {job.setting.seed for job in sweep.jobs} == {11}
    assert (sweep.race.seeds, sweep.race.drop_behind, sweep.race.apart) == ((1, 2), 90, 1.01)
    assert (sweep.race.draw, sweep.race.report_draw) == ("sums", "clients")
    assert read_sweep(tmp_path / "small.toml", reduced=True).race.seeds == (5,)
    settings = [job.setting for job in sweep.jobs[:4]]  # runs of one strength stand side by side
    strengths = [one.plan.mechanism.noise_multiplier for one in settings]
    assert list(zip(strengths, [one.training.lr for one in settings], strict=True)) == [
        (1, 0.02),
        (1, 0.3),
        (4, 0.02),
        (4, 0.3),
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("seeds = [11]", "seeds = [2, 11]"),
        ("seeds = [11]", "seeds = []"),
        ('draw = "sums"', 'draw = "guesses"'),
        ("drop_behind = 90", "drop_behind = 0"),
        ("apart = 1.01", "apart = 0.5"),
        ("apart = 1.01", "far = 2"),
        ("drop_behind = 90", "drop = 1"),
    ],
)
def test_what_is_no_race_is_refused(tmp_path, before, after):
    with pytest.raises(quietbit.InvalidParameter):
        read_sweep(written(tmp_path, before, after))


def on_device(sweep, folder, *, resume):
    """Both stages on a device; return how many jobs ran, and how many are left."""
    together = BatchTogether("cpu", make_problem)

    def run(stage, resume, minutes):
        together.prepare(sweep.race, chooses=stage.race is not None)
        return run_batches(stage, folder, together, resume=resume, minutes=minutes)

    return run_stages(sweep, folder, run, resume=resume, minutes=None)


def test_seeds_choose_then_others_report(sweep, tmp_path):
    """Each job once, in a second call nothing."""
    ran, left = on_device(sweep, tmp_path, resume=False)
    lines = finished(tmp_path)
    assert (ran, left) == (len(lines), 0)
    chose = [line for line in lines if line.get("chooses")]
    assert {line["record"]["settings"]["seed"] for line in chose} == {11}
    assert len(chose) == len(sweep.jobs)
    others = [line for line in lines if not line.get("chooses")]
    assert {line["record"]["settings"]["seed"] for line in others} == {1, 2}
    assert {line["label"] for line in others} == {"Gaussian", "SignSGD"}
    draws = {line["record"]["draws"] for line in others if line["label"] == "SignSGD"}
    assert draws == {"every client"}
    assert on_device(sweep, tmp_path, resume=True) == (0, 0)


def test_one_by_one_and_stopped_between(sweep, tmp_path):
    """Without a device; the reporting stage waits until every choosing run is there."""

    def run(stage, resume, minutes):
        return run_sweep(stage, tmp_path, make_problem, resume=resume, minutes=minutes)

    first = run_stages(sweep, tmp_path, run, resume=False, minutes=1e-9)
    assert first == (1, len(sweep.jobs) - 1)
    ran, left = run_stages(sweep, tmp_path, run, resume=True, minutes=None)
    assert left == 0
    assert ran + 1 == len(finished(tmp_path))


def line(job, points, status="finished"):
    points = [{"round": r, "accuracy": a, "epsilon_upper": e} for r, a, e in points]
    record = {"status": status, "settings": job.setting.to_json(), "points": points}
    return {"job": job.identity, "label": job.label, "record": record}


def test_what_is_reported_is_what_was_chosen_and_no_longer_than_needed(sweep):
    """Step 0.3 wins at two rounds, 0.02 at four; strength 4 is beaten; close points thinned."""
    low, high, weak, other, *signs = sweep.jobs
    results = [
        line(low, [(2, 0.3, 1.0), (4, 0.8, 2.0), (6, 0.7, 3.0)]),
        line(high, [(2, 0.5, 1.0), (4, 0.6, 2.0)], "dropped"),
        line(weak, [(2, 0.2, 1.5), (4, 0.2, 2.5), (6, 0.2, 3.5)]),
        line(other, [(2, 0.1, 0.995), (4, 0.2, 1.5), (6, 0.2, 3.5)]),
        *(line(job, [(2, 0.1, 1.0)], "diverged") for job in signs),
    ]
    found = reporting(sweep, results)
    assert found.race is None
    assert chosen_jobs(found) == [(1, 0.02, 4), (1, 0.3, 2), (2, 0.02, 4), (2, 0.3, 2)]
    assert {job.setting.training.evaluate_at for job in found.jobs} == {(2, 4), (2,)}
    # A longer run of a seed that reports is as good; a shorter one, or one that was dropped, is
    # not.
    known = [
        line(job_with(low, seed=1, rounds=6), [(2, 0.1, 1.0), (4, 0.1, 2.0), (6, 0.1, 3.0)]),
        line(job_with(low, seed=2, rounds=2), [(2, 0.1, 1.0)]),
        line(job_with(high, seed=1, rounds=6), [(2, 0.1, 1.0)], "dropped"),
    ]
    rest = reporting(sweep, results + known)
    assert chosen_jobs(rest) == [(1, 0.3, 2), (2, 0.02, 4), (2, 0.3, 2)]


def chosen_jobs(sweep):
    settings = [job.setting for job in sweep.jobs]
    return sorted((one.seed, one.training.lr, one.training.rounds) for one in settings)


def job_with(job, **changes):
    values = {**job.setting.to_json(), **changes}
    scored = [number for number in values["evaluate_at"] if number <= values["rounds"]]
    values["evaluate_at"] = scored
    return Job(Setting.from_json(values), job.task, job.label)


def test_a_sweep_without_choosing_seeds_has_one_stage(tmp_path):
    cut = FILE[FILE.index("[choose]") : FILE.index("[reduced]")]
    sweep = read_sweep(written(tmp_path, cut, ""))
    assert sweep.race is None
    assert reporting(sweep, []) is sweep
    assert on_device(sweep, tmp_path, resume=False) == (len(sweep.jobs), 0)
    assert not any(line.get("chooses") for line in finished(tmp_path))
    assert pending(sweep, tmp_path, resume=True) == []
