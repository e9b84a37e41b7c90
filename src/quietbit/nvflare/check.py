"""What would leave a site with a given `privacy.json`, as NVFlare reads it, scope by scope.

Idea     NVFlare is silent about a file that protects nothing: a key misspelt, a list emptied or a
         scope renamed, and weights leave as they are. So a site can ask beforehand, of what
         NVFlare's own reader makes of the file. A scope is safe when the component stands, which
         shuts the ways out before the first task; then its filters answer, or nobody does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

from attrs import frozen
from nvflare.apis.fl_constant import FilterKey, WorkspaceConstants
from nvflare.private.fed.app.fl_conf import PrivacyConfiger
from nvflare.private.privacy_manager import Scope

from quietbit.errors import QuietbitError
from quietbit.federation.client import gate_for, owner_keys
from quietbit.node.gate import LocalGate
from quietbit.nvflare.client import PrivateUplink
from quietbit.secagg.identity import read_file

__all__ = ["PrivacyCheck", "ScopeCheck", "check_privacy"]

MOST_BYTES = 2**20
RAW = "everything that a job sends, weights as they are among it"
EARLY = "what a job sends, logs or fails with before its first task; no task is answered"
NOTHING = "nothing: no task is answered"
LOGS = (
    "logs of the site and of its jobs: resources.json beside this file must say "
    "allow_log_streaming: false"
)
RELEASES = "releases within the policy, of all tasks with quietbit's request"


@final
@frozen
class ScopeCheck:
    """One scope: what stands in it, what it names, and what would leave."""

    name: str
    default: bool
    data_filter: bool
    result_filter: bool
    owner: str  # the policy or gatekeeper that it names
    problem: str  # why these cannot be used
    leaves: str
    unpriced: bool


@final
@frozen
class PrivacyCheck:
    """A file: whether the component stands, the scopes, and what leaves whatever they say."""

    component: bool
    scopes: tuple[ScopeCheck, ...]
    beside: tuple[str, ...]

    @property
    def unpriced(self) -> bool:
        """Whether anything would leave that no ledger has."""
        return bool(self.beside) or any(scope.unpriced for scope in self.scopes)


def check_privacy(path: str | os.PathLike[str]) -> PrivacyCheck:
    """Say what would leave a site with this `privacy.json`; refuse what NVFlare cannot read."""
    place = Path(path).expanduser().absolute()
    try:
        json.loads(read_file(place, MOST_BYTES, "privacy.json"))
        reader = PrivacyConfiger(
            SimpleNamespace(get_site_privacy_file_path=lambda: str(place)), names_only=False
        )
        reader.configure()
        manager = reader.privacy_manager
    except Exception as error:
        raise QuietbitError(f"Cannot read {place} as NVFlare's privacy.json: {error}") from error
    beside = (LOGS,) if _streams_logs(place.parent) else ()
    if not manager.is_policy_defined():
        ignored = f"the file has no scope, and NVFlare ignores the rest of it: {RAW}"
        return PrivacyCheck(False, (), (*beside, ignored))
    component = _has_filter(manager.components.values())
    scopes = [
        _judged(scope, scope is manager.default_scope, component)
        for scope in manager.name_to_scopes.values()
    ]
    if manager.default_scope is None:
        scopes.append(_judged(Scope(), True, component))
    return PrivacyCheck(component, tuple(scopes), beside)


def _has_filter(members: Iterable[Any]) -> bool:
    return any(isinstance(member, PrivateUplink) for member in members)


def _judged(scope: Any, default: bool, component: bool) -> ScopeCheck:
    """Judge a scope; one without a name is the default where the file names none."""
    data_filter = _has_filter(scope.task_data_filters[FilterKey.IN])
    result_filter = _has_filter(scope.task_result_filters[FilterKey.OUT])
    owner = _owner(scope.props)
    answers = data_filter and result_filter
    unpriced = not component
    if not component:
        leaves = EARLY if answers else RAW
    elif not answers:
        leaves = f"{NOTHING} unless the job brings quietbit's filters"
    else:
        leaves = NOTHING if owner.problem else RELEASES
    if component and owner.bare and not owner.problem:
        leaves = f"{leaves}, and {owner.bare}"
        unpriced = True
    return ScopeCheck(
        scope.name,
        default,
        data_filter,
        result_filter,
        owner.named,
        owner.problem,
        leaves,
        unpriced,
    )


@final
@frozen
class _Owner:
    """What a scope names, why it cannot be used, and what it lets out without privacy."""

    named: str
    problem: str = ""
    bare: str = ""


def _owner(properties: Mapping[str, Any]) -> _Owner:
    """Ask the gate that would decide about tasks, whatever the properties of a scope name."""
    named = []
    for key in owner_keys(properties):
        named.append(f"{key.partition('.')[2]} {properties[key]}")
    owner = ", ".join(named)
    bare = []
    try:
        gate = gate_for(properties, {}, dict, None)
        metrics = gate.rules.metrics
        if metrics:
            bare.append(f"the numbers {', '.join(metrics)} without privacy")
        if isinstance(gate, LocalGate):
            gate.ledger.read()
            if gate.rules.seed is not None:
                bare.append("releases whose randomness anybody can repeat")
    except Exception as error:
        return _Owner(owner, str(error))
    return _Owner(owner, "", " and ".join(bare))


def _streams_logs(folder: Path) -> bool:
    """Return whether a site may stream its log: so it does unless the first file found says no."""
    for name in (WorkspaceConstants.RESOURCES_CONFIG, WorkspaceConstants.DEFAULT_RESOURCES_CONFIG):
        path = folder / name
        if path.is_file():
            try:
                resources = json.loads(read_file(path, MOST_BYTES, name))
                return resources.get("allow_log_streaming") is not False
            except (QuietbitError, ValueError, AttributeError, RecursionError):
                return True
    return True
