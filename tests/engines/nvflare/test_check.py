"""`quietbit node check privacy.json`: what it says would leave, against what NVFlare lets out with
the same file.
"""

import json
import os

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.shareable import Shareable
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils import fobs
from nvflare.private.fed.app.fl_conf import create_privacy_manager

from engines.nvflare.kit import UPLINK, Server, Site, content, privacy
from federation.node.makers import write_policy
from quietbit.cli.main import main
from quietbit.errors import QuietbitError
from quietbit.nvflare.check import check_privacy

SECRET = np.float32(12345.6789).tobytes()


@pytest.fixture
def site_folder(tmp_path):
    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    (tmp_path / "local" / "resources.json").write_text(json.dumps({"allow_log_streaming": False}))
    return tmp_path


def written(folder, table):
    place = folder / "local" / "privacy.json"
    place.write_text(table if isinstance(table, str) else json.dumps(table))
    return place


def test_the_file_of_the_how_to_lets_out_releases_alone(site_folder, capsys):
    place = written(site_folder, privacy(write_policy(site_folder)))
    found = check_privacy(place)
    assert not found.unpriced
    assert [scope.leaves.split()[0] for scope in found.scopes] == ["releases"]
    assert main(["node", "check", str(place)]) == 0
    assert "Scope private, the default" in capsys.readouterr().out
    assert main(["node", "check", str(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scopes"][0]["problem"] == ""


CHANGES = {
    "no scope": (lambda table: table.update(scopes=[]), True, "has no scope"),
    "a key misspelt": (lambda table: table.update(scope=table.pop("scopes")), True, "has no scope"),
    "no component": (lambda table: table.pop("components"), True, "before its first task"),
    "no component, no filter": (
        lambda table: (table.pop("components"), table["scopes"][0].pop("task_result_filters")),
        True,
        "as they are",
    ),
    "no filter": (lambda table: table["scopes"][0].pop("task_data_filters"), False, "nothing"),
    "filters of the wrong direction": (
        lambda table: table["scopes"][0].update(
            task_data_filters=[{"path": UPLINK, "direction": "out"}]
        ),
        False,
        "nothing",
    ),
    "another scope": (lambda table: table["scopes"].append({"name": "open"}), False, "nothing"),
    "no default": (lambda table: table.pop("default_scope"), False, "nothing"),
    "no policy": (lambda table: table["scopes"][0].pop("properties"), False, "nothing"),
    "a policy that is not there": (
        lambda table: table["scopes"][0].update(properties={"quietbit.policy": "/no/where"}),
        False,
        "nothing",
    ),
    "no gatekeeper": (
        lambda table: table["scopes"][0].update(properties={"quietbit.gatekeeper": "/no/where"}),
        False,
        "nothing",
    ),
}


@pytest.mark.parametrize(("change", "unpriced", "word"), CHANGES.values(), ids=CHANGES)
def test_what_would_leave_is_said(site_folder, capsys, change, unpriced, word):
    table = privacy(write_policy(site_folder))
    change(table)
    place = written(site_folder, table)
    assert main(["node", "check", str(place)]) == int(unpriced)
    assert word in " ".join(capsys.readouterr().out.split())


def test_numbers_without_privacy_seeds_and_logs_are_said(site_folder, capsys):
    place = written(site_folder, privacy(write_policy(site_folder, metrics=("accuracy",))))
    assert main(["node", "check", str(place)]) == 1
    assert "the numbers accuracy without privacy" in " ".join(capsys.readouterr().out.split())
    for text in ("{}", '{"allow_log_streaming": true}', "[]", "words"):
        (site_folder / "local" / "resources.json").write_text(text)
        assert any("logs" in one for one in check_privacy(place).beside)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"scopes": 5}', '{"components": [{"path": "no.such.Thing", "id": "a"}]}'],
)
def test_what_nvflare_cannot_read_is_unreadable(site_folder, text, capsys):
    place = written(site_folder, text)
    if text.startswith('{"scopes"'):  # it reads this one, and protects nothing with it
        assert main(["node", "check", str(place)]) == 1
        return
    assert main(["node", "check", str(place)]) == 2
    assert main(["node", "check", str(site_folder / "none.json")]) == 2
    assert "privacy.json" in capsys.readouterr().err


JUNK = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "words",
    "out",
    "in",
    "INOUT",
    [],
    {},
    [[]],
    "quietbit.nvflare.client.Turn",
    "nvflare.app_common.filters.exclude_vars.ExcludeVars",
)


def mutated(value, rng):
    """One thing somewhere below lost, doubled, misspelt or replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = list(value)[rng.integers(len(value))]
        kind = rng.random()
        rest = {name: entry for name, entry in value.items() if name != key}
        if kind < 0.25:
            return rest
        if kind < 0.4:
            place = int(rng.integers(len(key) + 1))
            return {**rest, key[:place] + "_" * int(rng.integers(2)) + key[place + 1 :]: value[key]}
        return {**rest, key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place, kind = int(rng.integers(len(value))), rng.random()
        if kind < 0.2:
            return value[:place] + value[place + 1 :]
        if kind < 0.3:
            return [*value, value[place]]
        return [*value[:place], mutated(value[place], rng), *value[place + 1 :]]
    return JUNK[rng.integers(len(JUNK))]


class Speaks(FLComponent):
    """A job's component that says something about the data before the first task, by an event to
    the server.
    """

    def handle_event(self, event_type, fl_ctx):
        if event_type == "_start_run":
            fl_ctx.get_engine().send_aux_request(
                None, "early", Shareable({"SECRET": SECRET}), 1.0, fl_ctx
            )


def lets_out(folder) -> bool:
    """Whether NVFlare, with this file and a job that brings no filter, lets out anything but a
    release.
    """
    manager = create_privacy_manager(Workspace(str(folder), "site-1"), names_only=False)
    scopes = (
        [*manager.name_to_scopes.values(), manager.default_scope]
        if manager.is_policy_defined()
        else [None]
    )
    guards = list(manager.components.values()) if manager.is_policy_defined() else []
    return any(_lets_out(folder, scope, guards) for scope in scopes)


KNOWN: dict[tuple, bool] = {}


def _lets_out(folder, scope, guards) -> bool:
    """Try it, once for all files that NVFlare makes the same of."""
    key = tuple(type(one).__name__ for one in guards)
    if scope is not None:
        chains = (scope.task_data_filters, scope.task_result_filters)
        key += (
            repr(scope.props),
            *(type(one).__name__ + way for chain in chains for way in chain for one in chain[way]),
        )
    if key not in KNOWN:
        KNOWN[key] = _tried(folder, scope, guards)
    return KNOWN[key]


def _tried(folder, scope, guards) -> bool:
    arrays = {"weight": np.full((5, 7), 12345.6789, np.float32), "bias": np.zeros(7, np.float32)}
    result = DXO(DataKind.WEIGHTS, data=arrays).to_shareable()
    options = {"simulated": False, "filters": [None, None], "started": False}
    site = Site(lambda *_: result, scope=scope, properties=getattr(scope, "props", None), **options)
    site.engine.new_context().set_prop(FLContextKey.WORKSPACE_ROOT, str(folder), private=True)
    for handler in (Speaks(), *(one for one in guards if isinstance(one, FLComponent))):
        site.engine.add_handler(handler)
    site.starts().starts("_start_run")
    reply = site.does(Server().asks())
    spoke = any(sent["topic"] == "early" for sent in site.engine.sent)
    return spoke or SECRET in fobs.dumps(reply) or not set(content(reply)) <= {"quietbit"}


@pytest.mark.parametrize("count", [200, pytest.param(1500, marks=pytest.mark.long)])
def test_no_mutated_file_that_protects_nothing_passes_silently(site_folder, count):
    """Files with one to four mistakes: whatever NVFlare lets out, the check said so; and it
    cries no wolf.
    """
    rng, table = (
        np.random.default_rng(28),
        privacy(write_policy(site_folder, epsilon=1e4, releases=10**4)),
    )
    counts = {"unreadable": 0, "open": 0, "closed": 0}
    for _ in range(count):
        changed = table
        for _ in range(int(rng.integers(1, 5))):
            changed = mutated(changed, rng)
        place = written(site_folder, changed)
        try:
            found = check_privacy(place)
        except QuietbitError:
            with pytest.raises(Exception):  # noqa: B017, PT011  NVFlare starts no job with it, either
                lets_out(site_folder)
            counts["unreadable"] += 1
            continue
        assert found.unpriced == lets_out(site_folder), changed
        counts["open" if found.unpriced else "closed"] += 1
    assert min(counts.values()) > count / 30, counts


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes")
@pytest.mark.parametrize("name", ["privacy.json", "resources.json"])
def test_a_file_that_never_ends_is_refused_at_once(tmp_path, name):
    place = tmp_path / "privacy.json"
    place.write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/zero")
    if name == "resources.json":
        assert check_privacy(place).unpriced
        return
    with pytest.raises(QuietbitError, match="a regular file"):
        check_privacy(place)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(QuietbitError, match="a regular file"):
        check_privacy(place)
