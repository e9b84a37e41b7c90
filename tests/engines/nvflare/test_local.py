"""One line in a job: whatever an app answers, what leaves is a release of the same kind, and a
budget that is used up declines.
"""

import csv
import errno
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, make_reply
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.fuel.utils import fobs

from engines.nvflare.kit import DIMENSION, JOB, App, Site, owned, trained, weights
from federation.node.makers import books, write_policy
from quietbit.errors import InvalidParameter
from quietbit.federation.plan import Plan
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import Gatekeeper
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.nvflare import LocalPrivacy

LINE = {"epsilon": 4.0, "clip": 1.0, "releases": 3, "adjacency": "zero-out"}
NEARLY_EXACT = LINE | {"epsilon": 1e9, "releases": 10}
SECRET = 12345.6789
MARKS = (
    np.float32(SECRET).tobytes(),
    np.float64(SECRET).tobytes(),
    np.float64(SECRET).tobytes()[::-1],
    b"SECRET",
)


def site(app, folder, line=LINE, **options):
    made = Site(
        app,
        filters=(None, LocalPrivacy(**line)),
        simulated=False,
        started=False,
        **options,
    )
    for place in ("local", "startup"):
        (folder / place).mkdir(exist_ok=True)
    made.engine.workspace = Workspace(str(folder), "site-1")
    (folder / JOB).mkdir(exist_ok=True)
    made.starts()
    return made


def task(arrays=None, name="train", number="1"):
    made = DXO(DataKind.WEIGHTS, data=weights() if arrays is None else arrays).to_shareable()
    made.set_header(ReservedHeaderKey.TASK_NAME, name)
    made.set_header(ReservedHeaderKey.TASK_ID, number)
    return made


def content(result):
    return {key: value for key, value in result.items() if key != ReservedHeaderKey.HEADERS}


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_in_and_out_are_of_one_kind_and_nearly_exact_under_a_huge_budget(tmp_path, kind):
    result = from_shareable(site(trained(0.01, kind), tmp_path, NEARLY_EXACT).does(task()))
    assert result.data_kind == kind
    for name, came in weights().items():
        base = came if kind == DataKind.WEIGHTS else 0 * came
        assert result.data[name].dtype == came.dtype
        np.testing.assert_allclose(result.data[name], base + 0.01, atol=2e-3)


def test_what_leaves_is_clipped_and_noisy(tmp_path):
    """The noise of a coordinate has the deviation of the mechanism, and an update 1,000 times too
    long moves the mean of many by its direction at the clip.
    """
    line = LINE | {"epsilon": 100.0, "releases": 100}
    far = site(trained(1000.0, DataKind.WEIGHT_DIFF), tmp_path, line)
    rows = []
    for number in range(100):
        data = from_shareable(far.does(task(number=str(number)))).data
        rows.append(np.concatenate([part.ravel() for part in data.values()]))
    rows = np.array(rows)
    deviation = (rows - rows.mean()).std()
    sigma = Plan("gaussian", **line).mechanism_for(DIMENSION).noise_multiplier
    assert deviation == pytest.approx(sigma, rel=6 / (2 * 100 * DIMENSION) ** 0.5)
    # each entry is 1 / sqrt(42) of the clip; the mean of all entries errs by sigma / sqrt(4,200)
    expected = DIMENSION**-0.5
    assert rows.mean() == pytest.approx(expected, abs=6 * sigma / (100 * DIMENSION) ** 0.5)


def test_a_model_that_is_trained_in_place_does_not_leave(tmp_path):
    def app(name, shareable, fl_ctx):
        for array in shareable["DXO"]["data"].values():
            array[...] = SECRET
        return shareable

    result = site(app, tmp_path).does(task())
    assert np.abs(from_shareable(result).data["bias"]).max() < SECRET / 10
    assert not any(mark in fobs.dumps(result) for mark in MARKS)


def test_counters_and_statistics_go_back_as_they_came(tmp_path):
    arrays = weights() | {
        "bn.num_batches_tracked": np.array(7),
        "bn.running_mean": np.full(7, 0.5, np.float32),
    }

    def app(name, shareable, fl_ctx):
        data = {key: value + np.array(3, value.dtype) for key, value in arrays.items()}
        return DXO(DataKind.WEIGHTS, data=data).to_shareable()

    data = from_shareable(site(app, tmp_path).does(task(arrays))).data
    assert data["bn.num_batches_tracked"] == 7
    assert (data["bn.running_mean"] == 0.5).all()
    assert list(data) == list(arrays)


def loud(name, shareable, fl_ctx):
    result = DXO(
        DataKind.WEIGHTS,
        data={key: np.full_like(value, SECRET) for key, value in weights().items()},
        meta={"initial_metrics": {"SECRET": SECRET}, "NUM_STEPS_CURRENT_ROUND": SECRET},
    ).to_shareable()
    result.set_header("SECRET", SECRET)
    result["SECRET"] = SECRET
    return result


def crash(name, shareable, fl_ctx):
    raise ValueError(f"SECRET {SECRET}")


def other_kind(name, shareable, fl_ctx):
    return DXO(DataKind.METRICS, data={"SECRET": SECRET}).to_shareable()


def not_ok(name, shareable, fl_ctx):
    result = loud(name, shareable, fl_ctx)
    result.set_return_code("SECRET")
    return result


def not_finite(name, shareable, fl_ctx):
    data = {key: np.full_like(value, np.nan) for key, value in weights().items()}
    return DXO(DataKind.WEIGHTS, data=data).to_shareable()


def infinite(name, shareable, fl_ctx):
    data = {key: np.full(value.shape, 1e308) * 10 for key, value in weights().items()}
    return DXO(DataKind.WEIGHTS, data=data).to_shareable()


def leaves_python(name, shareable, fl_ctx):
    raise SystemExit("SECRET")


def other_shapes(name, shareable, fl_ctx):
    return DXO(DataKind.WEIGHTS, data={"weight": np.full(3, SECRET, np.float32)}).to_shareable()


@pytest.mark.parametrize(
    "app",
    [
        loud,
        crash,
        other_kind,
        not_ok,
        not_finite,
        infinite,
        leaves_python,
        other_shapes,
        lambda *_: None,
    ],
)
def test_nothing_else_leaves(tmp_path, app):
    """Neither a header, a metric, a text nor the raw arrays; an app that fails releases zero."""
    calls = []

    def answer(*given):
        calls.append(given)
        return trained(0.0)(*given) if len(calls) == 1 else app(*given)

    made = site(answer, tmp_path)
    made.does(task())
    result = made.does(task(number="2"))
    assert set(content(result)) == {"DXO"}
    assert not any(mark in fobs.dumps(content(result)) for mark in MARKS)
    assert "SECRET" not in str(result)
    dxo = from_shareable(result)
    assert dxo.data_kind == DataKind.WEIGHTS
    assert dxo.meta == {}
    assert np.abs(dxo.data["bias"] - weights()["bias"]).max() < 100


def test_a_task_that_is_not_listed_lets_no_data_out(tmp_path):
    made = site(loud, tmp_path)
    for name in ("submit_model", "validate"):
        result = made.does(task(name=name))
        assert not content(result)
        assert result.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
        assert "SECRET" not in str(result)

    quiet = site(lambda *_: make_reply(ReturnCode.OK), tmp_path)
    assert quiet.does(task(name="configure")).get_return_code() == ReturnCode.OK


def test_a_budget_that_is_used_up_declines_and_survives_a_restart(tmp_path):
    first = site(trained(0.01), tmp_path)
    for number in range(2):
        assert content(first.does(task(number=str(number))))
    app = App(trained(0.01))
    again = site(app, tmp_path)
    assert content(again.does(task(number="3")))
    result = again.does(task(number="4"))
    assert not content(result)
    assert result.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert app.calls == 1, "the app is not asked where nothing is released"
    with open(tmp_path / JOB / "quietbit-epsilon.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["release"] for row in rows] == ["1", "2", "3"]
    assert 3.9 < float(rows[-1]["epsilon"]) <= 4.0


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_site_may_decline_with_a_zero_difference(tmp_path, kind):
    made = site(trained(0.01, kind), tmp_path, LINE | {"releases": 1, "spent": "zero"})
    made.does(task())
    data = from_shareable(made.does(task(number="2"))).data
    for name, came in weights().items():
        np.testing.assert_array_equal(data[name], came if kind == DataKind.WEIGHTS else 0 * came)


def test_an_owners_policy_stands_above_the_line(tmp_path):
    rules = {"mechanisms": ("gaussian",), "largest_clip": 0.5, "response_seconds": 0.0}
    owner = owned(tmp_path, **rules)
    made = site(trained(0.01), tmp_path, properties=owner)
    assert not content(made.does(task())), "the clip is above the owner's"
    allowed = site(trained(0.01), tmp_path, LINE | {"clip": 0.5}, properties=owner)
    assert content(allowed.does(task()))
    assert not (tmp_path / "quietbit").exists(), "the owner's ledger is the one"


def test_a_gatekeeper_notes_and_counts_for_the_line(tmp_path):
    rules = {"epsilon": 100.0, "mechanisms": ("gaussian",), "response_seconds": 0.0}
    policy = Policy.load(write_policy(tmp_path, **rules))
    local = LocalGate(policy, FileLedger(policy.ledger, policy.counter), {})
    keeper = Gatekeeper(local, tmp_path / "gate")
    thread = threading.Thread(target=keeper.serve)
    thread.start()
    try:
        owner = {"quietbit.gatekeeper": str(tmp_path / "gate")}
        made = site(trained(0.01), tmp_path, properties=owner)
        for number in range(3):
            assert content(made.does(task(number=str(number))))
        assert not content(made.does(task(number="4")))
    finally:
        keeper.stop()
        thread.join()
    noted = [(release.round, release.run) for release in books(tmp_path).noted]
    assert [number for number, _ in noted] == [1, 2, 3]
    with open(tmp_path / JOB / "quietbit-epsilon.csv", encoding="utf-8") as file:
        spent = [float(row["epsilon"]) for row in csv.DictReader(file)]
    assert spent == sorted(spent)
    assert 3.9 < spent[-1] <= 4.0


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("epsilon", {"epsilon": -1.0}),
        ("epsilon", {"epsilon": float("nan")}),
        ("clip", {"clip": 0.0}),
        ("releases", {"releases": 0}),
        ("adjacency", {"adjacency": "none"}),
        ("spent", {"spent": "crash"}),
        ("mechanism", {"mechanism": "none"}),
        ("delta", {"delta": 2.0}),
    ],
)
def test_numbers_that_make_no_plan_are_refused(field, values):
    with pytest.raises((InvalidParameter, ValueError)) as caught:
        LocalPrivacy(**(LINE | values))
    assert field in str(caught.value)


@pytest.mark.parametrize("tasks", [("*",), ("learn*",)])
def test_names_of_tasks_are_exact_and_a_pattern_ends_the_run(tmp_path, tasks):
    """NVFlare reads no pattern in the tasks of filters: such a chain would never be asked."""
    made = site(loud, tmp_path, tasks=tasks)
    for name in ("train", "*"):
        assert not content(made.does(task(name=name)))


def test_a_second_line_in_one_job_ends_the_run(tmp_path, caplog):
    made = site(loud, tmp_path)
    made.engine.add_handler(LocalPrivacy(**LINE))
    made.starts()
    assert "must be one for all tasks of a job" in caplog.text
    assert not any(mark in fobs.dumps(content(made.does(task()))) for mark in MARKS)


def noted(folder):
    """The numbers of the releases in the workspace's ledger."""
    home = folder / "quietbit"
    return [entry.round for entry in FileLedger(home / "ledger", home / "counter").read().noted]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("answer", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_every_type_and_shape_goes_out_as_it_came(tmp_path, kind, answer):
    arrays = {
        "matrix": np.zeros((3, 4), kind).T,
        "backwards": np.arange(5, dtype=kind)[::-1],
        "number": np.array(2.0, kind),
        "empty": np.zeros((0, 3), kind),
    }

    def app(name, shareable, fl_ctx):
        data = shareable["DXO"]["data"]
        base = {key: a if answer == DataKind.WEIGHTS else 0 * a for key, a in data.items()}
        data = {key: value + value.dtype.type(0.125) for key, value in base.items()}
        return DXO(answer, data=data).to_shareable()

    data = from_shareable(site(app, tmp_path, NEARLY_EXACT).does(task(arrays))).data
    for name, came in arrays.items():
        base = came if answer == DataKind.WEIGHTS else 0 * came
        assert (data[name].dtype, data[name].shape) == (came.dtype, came.shape)
        np.testing.assert_allclose(data[name], base + 0.125, atol=5e-3)


def test_tensors_go_out_as_tensors_and_bfloat16_is_declined_before_anything_is_noted(tmp_path):
    torch = pytest.importorskip("torch", reason="needs quietbit-lab")
    arrays = {"weight": torch.zeros(4, 3), "bias": torch.ones(4)}

    def app(name, shareable, fl_ctx):
        data = {
            key: (value + 0.125).requires_grad_() for key, value in shareable["DXO"]["data"].items()
        }
        return DXO(DataKind.WEIGHTS, data=data).to_shareable()

    made = site(app, tmp_path, NEARLY_EXACT)
    data = from_shareable(made.does(task(arrays))).data
    for name, came in arrays.items():
        assert not data[name].requires_grad
        torch.testing.assert_close(data[name], came + 0.125, atol=5e-3, rtol=0.0)
    half = {name: value.bfloat16() for name, value in arrays.items()}
    assert not content(made.does(task(half, number="2")))
    assert noted(tmp_path) == [1]


def test_a_model_that_is_not_finite_is_declined_before_anything_is_noted(tmp_path):
    app = App(trained(0.01))
    made = site(app, tmp_path)
    arrays = weights()
    arrays["bias"][0] = np.nan
    assert not content(made.does(task(arrays)))
    assert app.calls == 0
    assert noted(tmp_path) == []


def test_an_app_that_changes_its_mind_about_the_kind_answers_in_the_first_one(tmp_path):
    kinds = iter([DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])

    def app(*given):
        return trained(0.01, next(kinds))(*given)

    made = site(app, tmp_path, NEARLY_EXACT)
    for number in ("1", "2"):
        result = from_shareable(made.does(task(number=number)))
        assert result.data_kind == DataKind.WEIGHTS
        np.testing.assert_allclose(result.data["bias"], weights()["bias"] + 0.01, atol=2e-3)


def test_filters_and_executors_that_are_changed_in_the_run_let_nothing_out(tmp_path):
    """Chains that are emptied and executors that are copied: the line stands around each call."""
    made = site(loud, tmp_path)
    made.runner.task_result_filters.clear()
    results = [made.does(task())]
    table = made.runner.task_router.task_table
    for name, executor in list(table.items()):
        table[name] = deepcopy(executor)
    results.append(made.does(task(number="2")))
    sent = [fobs.dumps(content(result)) for result in results]
    assert not any(mark in text for mark in MARKS for text in sent)
    assert noted(tmp_path) == [1, 2]


def test_cookies_of_an_app_do_not_leave(tmp_path):
    def app(name, shareable, fl_ctx):
        shareable.add_cookie("app", f"SECRET {SECRET}")
        return trained(0.01)(name, shareable, fl_ctx)

    given = task()
    given.add_cookie("server", "own")
    result = site(app, tmp_path).does(given)
    assert result.get_cookie_jar() == {"server": "own"}


@pytest.mark.parametrize("stream", [False, True])
def test_of_all_streamed_metrics_only_the_epsilon_leaves(tmp_path, stream):
    """Converted by a component of the job, or sent by an executor of a sub-process itself."""

    def app(name, shareable, fl_ctx):
        for is_sent in (False, True):
            dxo = create_analytic_dxo("SECRET", SECRET, AnalyticsDataType.SCALAR, global_step=1)
            send_analytic_dxo(made.app, dxo, fl_ctx, fire_fed_event=is_sent)
        return trained(0.01)(name, shareable, fl_ctx)

    made = site(app, tmp_path, LINE | {"stream": stream})
    made.engine.add_handler(ConvertToFedEvent(["analytix_log_stats"]))
    made.starts("_start_run")
    made.does(task())
    events = [sent for sent in made.engine.sent if "fed.event" in str(sent)]
    assert "SECRET" not in str(events)
    assert str(events).count("quietbit.epsilon") == stream


def test_a_task_that_is_sent_twice_is_two_releases(tmp_path):
    made = site(trained(0.01), tmp_path)
    first, second = (from_shareable(made.does(task())).data["bias"] for _ in range(2))
    assert (first != second).all()
    assert noted(tmp_path) == [1, 2]


def test_jobs_that_begin_at_once_share_one_ledger_and_no_number(tmp_path, monkeypatch):
    """Eight processes' worth of one job: whoever comes second with a number is declined."""
    # Messages stay as they are: numpy reads them with `ast`, which Python 3.11 cannot in threads.
    monkeypatch.setattr("engines.nvflare.kit.carried", lambda message: message)
    sites = [site(trained(0.01), tmp_path, LINE | {"releases": 20}) for _ in range(8)]
    together = threading.Barrier(len(sites))

    def answered(made):
        together.wait()
        return bool(content(made.does(task())))

    with ThreadPoolExecutor(len(sites)) as pool:
        count = sum(pool.map(answered, sites))
    assert count >= 1
    assert noted(tmp_path) == list(range(1, count + 1))


@pytest.mark.parametrize("fault", ["gone", "one gone", "older", "another"])
def test_a_ledger_that_disappears_or_is_replaced_in_mid_run_declines(tmp_path, fault):
    app = App(trained(0.01))
    made = site(app, tmp_path)
    home = tmp_path / "quietbit"
    assert content(made.does(task()))
    shutil.copytree(home, tmp_path / "older")
    assert content(made.does(task(number="2")))
    if fault == "one gone":
        (home / "counter").unlink()
    else:
        shutil.rmtree(home)
    if fault == "older":
        shutil.copytree(tmp_path / "older", home)
    if fault == "another":
        home.mkdir(mode=0o700)
        FileLedger.create(home / "ledger", home / "counter")
    assert not content(made.does(task(number="3")))
    assert app.calls == 2


def test_a_ledger_without_its_files_is_not_made_again(tmp_path):
    """Not even after a restart: only a workspace that is new begins a new account."""
    assert content(site(trained(0.01), tmp_path).does(task()))
    for name in ("ledger", "counter"):
        (tmp_path / "quietbit" / name).unlink()
    assert not content(site(trained(0.01), tmp_path).does(task(number="2")))


def test_a_full_disk_declines_before_the_app_and_costs_no_release_after_it(tmp_path, monkeypatch):
    app = App(trained(0.01))
    made = site(app, tmp_path)
    shutil.rmtree(tmp_path / JOB)  # no table can be written
    assert content(made.does(task()))

    def full(ledger, change):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileLedger, "update", full)
    assert not content(made.does(task(number="2")))
    assert app.calls == 1


def test_an_app_that_interrupts_its_thread_releases_zero(tmp_path):
    """Outside the main thread nobody pressed Ctrl-C: in swarm learning apps are called there."""

    def app(name, shareable, fl_ctx):
        if shareable.get_header(ReservedHeaderKey.TASK_ID) == "2":
            raise KeyboardInterrupt("SECRET")
        return trained(0.01)(name, shareable, fl_ctx)

    made = site(app, tmp_path, NEARLY_EXACT)
    made.does(task())
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(made.does, task(number="2")).result()
    np.testing.assert_allclose(from_shareable(result).data["bias"], weights()["bias"], atol=2e-3)


def test_an_app_that_is_too_late_for_its_owner_releases_zero(tmp_path):
    held = threading.Event()

    def app(name, shareable, fl_ctx):
        if shareable.get_header(ReservedHeaderKey.TASK_ID) == "2":
            held.wait(20)
        return loud(name, shareable, fl_ctx)

    rules = {"mechanisms": ("gaussian",), "response_seconds": 1.0, "epsilon": 1e10}
    made = site(app, tmp_path, NEARLY_EXACT, properties=owned(tmp_path, **rules))
    moved = from_shareable(made.does(task())).data["bias"] - weights()["bias"]
    assert np.abs(moved).max() > 0.1
    late = from_shareable(made.does(task(number="2"))).data["bias"]
    held.set()
    np.testing.assert_allclose(late, weights()["bias"], atol=2e-3)
