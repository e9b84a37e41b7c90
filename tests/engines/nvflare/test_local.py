"""One line in a job: whatever an app answers, what leaves is a release of the same kind, and a
budget that is used up declines.
"""

import csv
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, make_reply
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent

from engines.nvflare.kit import (
    DIMENSION,
    FAILED,
    JOB,
    LEARNT,
    SECRET,
    content,
    flat,
    line_site,
    marked,
    owned,
    raw,
    says,
    secrets_in,
    trained,
    weights,
)
from quietbit.errors import InvalidParameter
from quietbit.federation.plan import Plan
from quietbit.node.ledger import FileLedger
from quietbit.nvflare import LocalPrivacy

LINE = {"epsilon": 4.0, "clip": 1.0, "releases": 3, "adjacency": "zero-out"}
NEARLY_EXACT = LINE | {"epsilon": 1e9, "releases": 10}
KINDS = (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)
loud = says(lambda: marked(raw()))


def site(app, folder, line=LINE, **options):
    return line_site(app, folder, line, **options)


def task(arrays=None, name="train", number="1"):
    made = DXO(DataKind.WEIGHTS, data=weights() if arrays is None else arrays).to_shareable()
    made.set_header(ReservedHeaderKey.TASK_NAME, name)
    made.set_header(ReservedHeaderKey.TASK_ID, number)
    made.add_cookie("server", "own")
    return made


def moved(made, **given):
    """What a task comes to: *trained minus received*, as one vector."""
    return flat(from_shareable(made.does(task(**given))).data) - flat(weights())


def noted(folder):
    """The numbers of the releases in the workspace's ledger."""
    home = folder / "quietbit"
    return [entry.round for entry in FileLedger(home / "ledger", home / "counter").read().noted]


def table(folder):
    """The rows that the line has written beside the job."""
    with open(folder / JOB / "quietbit-epsilon.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_and_out_are_of_one_kind_type_and_shape(tmp_path, dtype, kind):
    """Nearly exact under a huge budget; counters and statistics go back as they came."""
    arrays = {
        "matrix": np.zeros((3, 4), dtype).T,
        "backwards": np.arange(5, dtype=dtype)[::-1],
        "number": np.array(2.0, dtype),
        "empty": np.zeros((0, 3), dtype),
        "bn.num_batches_tracked": np.array(7),
        "bn.running_mean": np.full(7, 0.5, dtype),
    }
    made = site(trained(0.125, kind), tmp_path, NEARLY_EXACT)
    result = from_shareable(made.does(task(arrays)))
    assert (result.data_kind, list(result.data)) == (kind, list(arrays))
    for name, came in arrays.items():
        step = 0.0 if name.startswith("bn") else 0.125
        base = came if kind == DataKind.WEIGHTS else 0 * came
        assert (result.data[name].dtype, result.data[name].shape) == (came.dtype, came.shape)
        np.testing.assert_allclose(result.data[name], base + step, atol=5e-3 * (step > 0))


def test_what_leaves_is_clipped(tmp_path):
    made = site(trained(1000.0), tmp_path, NEARLY_EXACT)
    assert np.linalg.norm(moved(made)) == pytest.approx(1.0, abs=0.01)


def test_what_leaves_has_the_noise_of_the_mechanism(tmp_path):
    line = LINE | {"epsilon": 50.0, "releases": 30}
    made = site(trained(0.0, DataKind.WEIGHT_DIFF), tmp_path, line)
    rows = [flat(from_shareable(made.does(task())).data) for _ in range(30)]
    sigma = Plan("gaussian", **line).mechanism_for(DIMENSION).noise_multiplier
    # The deviation of n normals errs by a share of 1 / sqrt(2 n); six of these, below 1e-8.
    assert np.std(rows) == pytest.approx(sigma, rel=6 / (2 * 30 * DIMENSION) ** 0.5)


@pytest.mark.parametrize("name", LEARNT | FAILED)
def test_whatever_the_app_answers_nothing_else_leaves(tmp_path, name):
    """Neither a header, a metric, a text nor the raw arrays; an app that fails releases zero."""
    answers = [trained(0.0), (LEARNT | FAILED)[name]]
    made = site(lambda *given: answers.pop(0)(*given), tmp_path, NEARLY_EXACT)
    made.does(task())
    # As in swarm learning, where apps are not called in the main thread: nobody pressed Ctrl-C.
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(made.does, task(number="2")).result()
    assert set(content(result)) == {"DXO"}
    assert result.get_cookie_jar() == {"server": "own"}
    assert not secrets_in(result)
    dxo = from_shareable(result)
    assert (dxo.data_kind, dxo.meta) == (DataKind.WEIGHTS, {})
    length = np.linalg.norm(flat(dxo.data) - flat(weights()))
    assert length == pytest.approx(0.0 if name in FAILED else 1.0, abs=0.01)


def test_a_task_that_is_not_listed_lets_no_data_out(tmp_path):
    result = site(loud, tmp_path).does(task(name="validate"))
    assert not content(result)
    assert result.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    assert "SECRET" not in str(result)
    quiet = site(lambda *_: make_reply(ReturnCode.OK), tmp_path)
    assert quiet.does(task(name="configure")).get_return_code() == ReturnCode.OK


def test_a_budget_that_is_used_up_declines_and_survives_a_restart(tmp_path, caplog):
    caplog.set_level("INFO")
    first = site(trained(0.01), tmp_path)
    for number in range(2):
        assert content(first.does(task(number=str(number))))
    again = site(trained(0.01), tmp_path)
    assert content(again.does(task(number="3")))
    result = again.does(task(number="4"))
    assert not content(result)
    assert result.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert again.app.calls == 1, "the app is not asked where nothing is released"
    rows = table(tmp_path)
    assert [row["release"] for row in rows] == ["1", "2", "3"]
    assert 3.9 < float(rows[-1]["epsilon"]) <= 4.0
    assert "3 of 3 releases. epsilon <= " in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_may_decline_with_a_zero_difference(tmp_path, kind):
    made = site(trained(0.01, kind), tmp_path, LINE | {"releases": 1, "spent": "zero"})
    made.does(task())
    data = from_shareable(made.does(task(number="2"))).data
    for name, came in weights().items():
        np.testing.assert_array_equal(data[name], came if kind == DataKind.WEIGHTS else 0 * came)


def test_an_owners_policy_stands_above_the_line(tmp_path):
    owner = owned(tmp_path, mechanisms=("gaussian",), largest_clip=0.5)
    made = site(trained(0.01), tmp_path, properties=owner)
    assert not content(made.does(task())), "the clip is above the owner's"
    allowed = site(trained(0.01), tmp_path, LINE | {"clip": 0.5}, properties=owner)
    assert content(allowed.does(task()))
    assert not (tmp_path / "quietbit").exists(), "the owner's ledger is the one"


@pytest.mark.parametrize(
    ("field", "value"),
    [("epsilon", -1.0), ("clip", 0.0), ("releases", 0), ("spent", "crash"), ("delta", 2.0)],
)
def test_numbers_that_make_no_plan_are_refused(field, value):
    with pytest.raises(InvalidParameter) as caught:
        LocalPrivacy(**LINE | {field: value})
    assert field in str(caught.value)


@pytest.mark.parametrize("name", ["*", "learn*"])
def test_names_of_tasks_are_exact_and_a_pattern_ends_the_run(tmp_path, name):
    """NVFlare reads no pattern in the tasks of filters: such a chain would never be asked."""
    made = site(loud, tmp_path, tasks=(name,))
    assert not content(made.does(task()))
    assert not content(made.does(task(name="*")))


def test_a_line_among_other_filters_lets_nothing_pass(tmp_path):
    context = site(loud, tmp_path).engine.new_context()
    with pytest.raises(ContentBlockedException):
        LocalPrivacy(**LINE).process(raw(), context)


def test_a_second_line_in_one_job_ends_the_run(tmp_path, caplog):
    made = site(loud, tmp_path)
    made.engine.add_handler(LocalPrivacy(**LINE))
    made.starts()
    assert "must be one for all tasks of a job" in caplog.text
    assert not secrets_in(made.does(task()))


def test_tensors_go_out_as_tensors(tmp_path):
    torch = pytest.importorskip("torch", reason="needs quietbit-lab")
    arrays = {"weight": torch.zeros(4, 3), "bias": torch.ones(4)}

    def app(name, shareable, fl_ctx):
        came = shareable["DXO"]["data"]
        data = {key: (value + 0.125).requires_grad_() for key, value in came.items()}
        return DXO(DataKind.WEIGHTS, data=data).to_shareable()

    data = from_shareable(site(app, tmp_path, NEARLY_EXACT).does(task(arrays))).data
    for name, came in arrays.items():
        assert not data[name].requires_grad
        torch.testing.assert_close(data[name], came + 0.125, atol=5e-3, rtol=0.0)


def halved(made):
    """Tensors of a type that numpy has not."""
    torch = pytest.importorskip("torch", reason="needs quietbit-lab")
    made["DXO"]["data"] = {"weight": torch.zeros(4, 3).bfloat16()}


MODELS = {
    "not finite": lambda made: made["DXO"]["data"]["bias"].fill(np.nan),
    "of half floats": halved,
    "nothing to learn": lambda made: made["DXO"].update(data={"count": np.array(7)}),
    "a difference": lambda made: made["DXO"].update(kind=DataKind.WEIGHT_DIFF),
}


@pytest.mark.parametrize("change", MODELS.values(), ids=MODELS)
def test_a_model_that_cannot_be_learnt_is_declined_before_anything_is_noted(tmp_path, change):
    made, given = site(trained(0.01), tmp_path), task()
    change(given)
    assert not content(made.does(given))
    assert made.app.calls == 0
    assert noted(tmp_path) == []


def test_an_app_that_changes_its_mind_about_the_kind_answers_in_the_first_one(tmp_path):
    kinds = list(KINDS)
    made = site(lambda *given: trained(0.01, kinds.pop(0))(*given), tmp_path, NEARLY_EXACT)
    for _ in range(2):
        np.testing.assert_allclose(moved(made), 0.01, atol=2e-3)


def test_filters_and_executors_that_are_changed_in_the_run_let_nothing_out(tmp_path):
    """Chains that are emptied and executors that are copied: the line stands around each call."""
    made = site(loud, tmp_path)
    made.runner.task_result_filters.clear()
    assert not secrets_in(made.does(task()))
    executors = made.runner.task_router.task_table
    for name, executor in list(executors.items()):
        executors[name] = deepcopy(executor)
    assert not secrets_in(made.does(task(number="2")))
    assert noted(tmp_path) == [1, 2]


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
    assert (moved(made) != moved(made)).all()
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


@pytest.mark.parametrize("fault", ["gone", "older"])
def test_a_ledger_that_disappears_or_goes_back_in_mid_run_declines(tmp_path, fault):
    made = site(trained(0.01), tmp_path)
    home = tmp_path / "quietbit"
    assert content(made.does(task()))
    shutil.copytree(home, tmp_path / "older")
    assert content(made.does(task(number="2")))
    shutil.rmtree(home)
    if fault == "older":
        shutil.copytree(tmp_path / "older", home)
    assert not content(made.does(task(number="3")))
    assert made.app.calls == 2


def test_a_ledger_without_its_files_is_not_made_again(tmp_path):
    """Not even after a restart: only a workspace that is new begins a new account."""
    assert content(site(trained(0.01), tmp_path).does(task()))
    for name in ("ledger", "counter"):
        (tmp_path / "quietbit" / name).unlink()
    assert not content(site(trained(0.01), tmp_path).does(task(number="2")))


def test_a_release_leaves_where_no_table_can_be_written(tmp_path):
    made = site(trained(0.01), tmp_path)
    shutil.rmtree(tmp_path / JOB)
    assert content(made.does(task()))


def test_an_app_that_is_too_late_for_its_owner_releases_zero(tmp_path):
    held = threading.Event()

    def app(name, shareable, fl_ctx):
        if shareable.get_header(ReservedHeaderKey.TASK_ID) == "2":
            held.wait(20)
        return raw()

    rules = {"mechanisms": ("gaussian",), "response_seconds": 1.0, "epsilon": 1e10}
    made = site(app, tmp_path, NEARLY_EXACT, properties=owned(tmp_path, **rules))
    lengths = [np.linalg.norm(moved(made, number=number)) for number in ("1", "2")]
    held.set()
    assert lengths == pytest.approx([1.0, 0.0], abs=0.01)
