"""`quietbit node check privacy.json`: what it says would leave, against what NVFlare lets out with
the same file.
"""

import json
import os
import re

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.shareable import Shareable
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager

from engines.nvflare.kit import (
    SECRET,
    UPLINK,
    Server,
    Site,
    content,
    privacy,
    raw,
    says,
    secrets_in,
)
from federation.node.makers import write_policy
from quietbit.cli.main import main
from quietbit.errors import QuietbitError
from quietbit.nvflare.check import check_privacy


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


def test_numbers_without_privacy_and_seeds_are_said(site_folder):
    place = written(site_folder, privacy(write_policy(site_folder, metrics=("accuracy",), seed=1)))
    found = check_privacy(place)
    assert found.unpriced
    assert "the numbers accuracy without privacy" in found.scopes[0].leaves
    assert "releases whose randomness anybody can repeat" in found.scopes[0].leaves


@pytest.mark.parametrize("text", ["{}", '{"allow_log_streaming": true}', "[]", "words"])
def test_a_log_that_is_streamed_is_said(site_folder, text):
    place = written(site_folder, privacy(write_policy(site_folder)))
    (site_folder / "local" / "resources.json").write_text(text)
    assert "logs" in check_privacy(place).beside[0]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"components": [{"path": "no.such.Thing", "id": "a"}]}', None]
)
def test_what_nvflare_cannot_read_is_unreadable(site_folder, text, capsys):
    place = site_folder / "local" / "privacy.json"
    if text is not None:
        written(site_folder, text)
    assert main(["node", "check", str(place)]) == 2
    assert "privacy.json" in capsys.readouterr().err


JUNK = (None, True, -1, "", "out", "INOUT", [], {}, [[]], "quietbit.nvflare.client.Turn", UPLINK)


def mutated(value, rng):
    """One thing somewhere below lost, doubled, misspelt or replaced."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return JUNK[rng.integers(len(JUNK))]
    keys = list(value) if isinstance(value, dict) else range(len(value))
    place = int(rng.integers(len(keys)))
    key = keys[place]
    kind = rng.random()
    if isinstance(value, list):
        middle = [mutated(value[key], rng)]
        if kind < 0.3:
            middle = [value[key]] * (2 * (kind < 0.1))
        return [*value[:key], *middle, *value[key + 1 :]]
    rest = {name: entry for name, entry in value.items() if name != key}
    if kind < 0.25:
        return rest
    if kind < 0.4:
        return {**rest, f"{key[:-1]}_": value[key]}
    return {**rest, key: mutated(value[key], rng)}


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
    if not manager.is_policy_defined():
        return tried(folder, None, [])
    scopes = [*manager.name_to_scopes.values(), manager.default_scope]
    return any([tried(folder, scope, manager.components.values()) for scope in scopes])


KNOWN: dict[str, bool] = {}


def tried(folder, scope, guards) -> bool:
    """Try it, once for all files that NVFlare makes the same of."""
    found = (
        [] if scope is None else [scope.props, scope.task_data_filters, scope.task_result_filters]
    )
    key = re.sub(" at 0x[0-9a-f]+", "", repr([*found, *guards]))
    if key not in KNOWN:
        KNOWN[key] = leaks(folder, scope, guards)
    return KNOWN[key]


def leaks(folder, scope, guards) -> bool:
    options = {"simulated": False, "filters": [None, None], "started": False}
    site = Site(says(raw), scope=scope, properties=getattr(scope, "props", None), **options)
    site.engine.new_context().set_prop(FLContextKey.WORKSPACE_ROOT, str(folder), private=True)
    for handler in (Speaks(), *(one for one in guards if isinstance(one, FLComponent))):
        site.engine.add_handler(handler)
    site.starts().starts("_start_run")
    reply = site.does(Server().asks())
    spoke = any(sent["topic"] == "early" for sent in site.engine.sent)
    return bool(spoke or secrets_in(reply) or not set(content(reply)) <= {"quietbit"})


@pytest.mark.parametrize("count", [150, pytest.param(1500, marks=pytest.mark.long)])
def test_no_mutated_file_that_protects_nothing_passes_silently(site_folder, count):
    """Files with one to four mistakes: whatever NVFlare lets out, the check said so; and it
    cries no wolf.
    """
    rng = np.random.default_rng(28)
    table = privacy(write_policy(site_folder, epsilon=1e4, releases=10**4))
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
@pytest.mark.parametrize("make", [lambda place: place.symlink_to("/dev/zero"), os.mkfifo])
def test_files_that_never_end_are_not_waited_for(site_folder, make):
    place = written(site_folder, privacy(write_policy(site_folder)))
    assert not check_privacy(place).beside
    resources = site_folder / "local" / "resources.json"
    resources.unlink()
    make(resources)
    assert check_privacy(place).beside
    place.unlink()
    make(place)
    with pytest.raises(QuietbitError, match="a regular file"):
        check_privacy(place)
