"""A node's state in the Prometheus text format: the budgets spent, the caps, and the decisions.

Idea     everything here is a function of the policy, the ledger and the decisions, none of which
         depends on data: an owner may show it on a monitoring page. It says how much a node has
         released and for how many runs, so a server must not read it.
Source   https://prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4 of the text
         format.
"""

from __future__ import annotations

from collections.abc import Iterable

from quietbit.node.budget import epsilon_spent
from quietbit.node.costs import SavedCosts
from quietbit.node.decisions import ACCEPTED, History
from quietbit.node.ledger import MOST_MECHANISMS, LedgerState, Moment
from quietbit.node.policy import Policy
from quietbit.node.refusal import Reason

__all__ = ["metrics_text"]

Sample = tuple[dict[str, str], float]


def metrics_text(
    policy: Policy, state: LedgerState, history: History, saved: SavedCosts | None = None
) -> str:
    """Return the metrics of one node."""
    honest = policy.min_honest_clients or 0
    spent: list[Sample] = []
    caps: list[Sample] = []
    for cap in policy.caps:
        labels = {
            "adjacency": cap.adjacency.value,
            "delta": f"{cap.delta:g}",
            "trust": cap.trust.value,
            "unit": cap.unit.value,
        }
        spent.append(
            (labels, epsilon_spent(state, cap, policy, honest, policy.least_epsilon, saved))
        )
        caps.append((labels, cap.epsilon))
    counts = history.counts
    reasons = [ACCEPTED]
    reasons += [reason.value for reason in Reason if reason is not Reason.NOTED]  # not a decision
    decisions = [({"reason": reason}, float(counts.get(reason, 0))) for reason in reasons]
    today = state.last_day(Moment.now())
    families = [
        ("epsilon_spent", "gauge", "Upper bound on epsilon of all releases so far.", spent),
        ("epsilon_cap", "gauge", "The policy's epsilon for all releases.", caps),
        ("releases_total", "counter", "Releases in the ledger.", _plain(state.releases)),
        (
            "releases_cap",
            "gauge",
            "Releases that the policy allows in all.",
            _plain(policy.releases),
        ),
        ("releases_day", "gauge", "Releases of the last 24 hours.", _plain(today)),
        (
            "releases_day_cap",
            "gauge",
            "Releases allowed in 24 hours.",
            _plain(policy.releases_per_day),
        ),
        (
            "mechanisms",
            "gauge",
            "Different mechanisms in the ledger.",
            _plain(len(state.mechanisms)),
        ),
        ("mechanisms_cap", "gauge", "Mechanisms that a ledger holds.", _plain(MOST_MECHANISMS)),
        ("decisions_total", "counter", "Requests by decision.", decisions),
        ("decision_seconds_total", "counter", "Time that decisions took.", _plain(history.seconds)),
        (
            "answer_seconds",
            "gauge",
            "The policy's time from request to answer.",
            _plain(policy.answer_seconds),
        ),
    ]
    lines = []
    for name, kind, about, samples in families:
        lines.append(f"# HELP quietbit_{name} {about}")
        lines.append(f"# TYPE quietbit_{name} {kind}")
        lines.extend(_lines(name, samples))
    return "\n".join([*lines, ""])


def _plain(value: float) -> list[Sample]:
    return [({}, float(value))]


def _lines(name: str, samples: Iterable[Sample]) -> Iterable[str]:
    for labels, value in samples:
        words = ",".join(f'{key}="{text}"' for key, text in labels.items())
        shown = f"{{{words}}}" if words else ""
        yield f"quietbit_{name}{shown} {value!r}"
