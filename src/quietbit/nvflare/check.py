"""What would leave a site with a given `privacy.json`: read as NVFlare reads it, judged scope by scope.

Idea     NVFlare is silent about a file that protects nothing: a key misspelt, a list emptied or a
         scope renamed, and weights leave as they are. So a site can ask beforehand, of what
         NVFlare's own reader makes of the file. A scope is safe when the component stands, which
         shuts the ways out before the first task; then its filters answer, or nobody does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

from attrs import frozen
from nvflare.apis.fl_constant import FilterKey, WorkspaceConstants
from nvflare.private.fed.app.fl_conf import PrivacyConfiger

from quietbit.errors import QuietbitError
from quietbit.node.gatekeeper import RemoteGate
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.nvflare.client import PrivateUplink
from quietbit.run.client import GATEKEEPER, NODE_KEYS, POLICY

__all__ = ["PrivacyCheck", "ScopeCheck", "check_privacy"]

RAW = "everything that a job sends, weights as they are among it"
EARLY = "what a job sends, logs or fails with before its first task; no task is answered"
NOTHING = "nothing: no task is answered"
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
    """Say what would leave a site with this `privacy.json`; a file that NVFlare cannot read is refused."""
    place = Path(path).expanduser().absolute()
    try:
        json.loads(place.read_text(encoding="utf-8"))
        reader = PrivacyConfiger(
            SimpleNamespace(get_site_privacy_file_path=lambda: str(place)), names_only=False
        )
        reader.configure()
        manager = reader.privacy_manager
    except Exception as error:
        raise QuietbitError(f"Cannot read {place} as NVFlare's privacy.json: {error}") from error
    beside = _beside(place.parent)
    if not manager.is_policy_defined():
        return PrivacyCheck(
            False,
            (),
            (*beside, f"the file has no scope, and NVFlare ignores the rest of it: {RAW}"),
        )
    component = any(isinstance(one, PrivateUplink) for one in manager.components.values())
    known = [*manager.name_to_scopes.values()] + ([None] if manager.default_scope is None else [])
    scopes = [_judged(one, one is manager.default_scope, component) for one in known]
    return PrivacyCheck(component, tuple(scopes), beside)


def _judged(scope: Any, default: bool, component: bool) -> ScopeCheck:
    """Judge a scope; None is the default where the file names none."""
    chains: Any = (), ()
    if scope is not None:
        chains = scope.task_data_filters[FilterKey.IN], scope.task_result_filters[FilterKey.OUT]
    data, results = (any(isinstance(one, PrivateUplink) for one in chain) for chain in chains)
    owner, problem, bare = _owner({} if scope is None else scope.props)
    if not component:
        leaves = EARLY if data and results else RAW
    elif not (data and results):
        leaves = f"{NOTHING} unless the job brings quietbit's filters"
    else:
        leaves = NOTHING if problem else RELEASES
    told = f", and {bare}" if component and not problem and bare else ""
    unpriced = not component or bool(told)
    return ScopeCheck(
        getattr(scope, "name", ""),
        default,
        data,
        results,
        owner,
        problem,
        f"{leaves}{told}",
        unpriced,
    )


def _owner(props: Any) -> tuple[str, str, str]:
    """Return what a scope names, why it cannot be used, and what it lets out without privacy."""
    own = {key: value for key, value in props.items() if str(key).lower().startswith("quietbit")}
    if len(own) != 1 or not isinstance(props, Mapping) or not set(own) <= set(NODE_KEYS):
        return "", f"properties must name one of {' and '.join(NODE_KEYS)}", ""
    ((key, named),) = own.items()
    try:
        if key == GATEKEEPER:
            metrics, seed = RemoteGate(named).metrics, None
        else:
            policy = Policy.load(named)
            FileLedger(policy.ledger, policy.counter).read()
            metrics, seed = policy.metrics, policy.seed
    except Exception as error:  # a path of another type, too
        return str(named), str(error), ""
    bare = [f"the numbers {', '.join(metrics)} without privacy"] if metrics else []
    bare += ["releases whose randomness anybody can repeat"] if seed is not None else []
    return f"{'policy' if key == POLICY else 'gatekeeper'} {named}", "", " and ".join(bare)


def _beside(folder: Path) -> tuple[str, ...]:
    """Return what leaves by the site's other files, where they lie beside this one as on a site."""
    names = WorkspaceConstants.RESOURCES_CONFIG, WorkspaceConstants.DEFAULT_RESOURCES_CONFIG
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    try:
        allowed = (
            True
            if found is None
            else json.loads(found.read_text(encoding="utf-8")).get("allow_log_streaming")
        )
    except (OSError, ValueError, AttributeError):
        allowed = True
    if allowed is False:
        return ()
    return (
        "logs of the site and of its jobs: resources.json beside this file must say allow_log_streaming: false",
    )
