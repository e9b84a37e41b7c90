"""The lines of the experiments: a setting, where it starts, and how it is called.

In the order in which they run.
"""

from __future__ import annotations

from attrs import frozen
from training import Setting


@frozen
class Line:
    """One line; ``rate`` is where its search begins, ``seeds`` how many are reported (three unless given)."""

    group: str
    name: str
    setting: Setting
    kind: str = "bias"
    start: str = "zero"
    rate: float | None = None
    seeds: int | None = None


def line(
    group: str, setting: Setting, kind: str = "bias", start: str = "zero", seeds: int | None = None
) -> Line:
    """Return a line that is called after its parts."""
    words = [kind, start, setting.mechanism]
    if setting.epsilon:
        words.append(f"{setting.epsilon:g}")
    if setting.k:
        words.append(f"{setting.source}-{setting.k}")
    if setting.refresh:
        words.append("refreshed")
    if setting.passes > 1:
        words.append(f"passes-{setting.passes}")
    if setting.clients:
        words.append(f"clients-{setting.clients}")
    if setting.cohort != Setting("none").cohort:
        words.append(f"cohort-{setting.cohort}")
    if setting.noise != 1.0:
        words.append(f"noise-{setting.noise:g}")
    return Line(group, " ".join(words), setting, kind, start, None, seeds)


def all_lines() -> list[Line]:
    """Return every line."""
    lines = [line("main", Setting("none")), line("main", Setting("none", passes=5))]
    for epsilon in (8.0, 4.0, 1.0):
        for mechanism in ("vmvu", "sum", "central", "gaussian"):
            lines.append(line("main", Setting(mechanism, epsilon)))
    for source, k in (("vol", 16), ("man", 16), ("vol", 64), ("man", 64)):
        lines.append(line("space", Setting("none", 0.0, source, k)))
        for epsilon in (1.0, 4.0, 8.0):
            lines.append(line("space", Setting("vmvu", epsilon, source, k)))
        lines.append(line("space", Setting("sum", 1.0, source, k)))
        lines.append(line("space", Setting("central", 1.0, source, k)))
    for mechanism in ("sum", "central", "gaussian"):
        for epsilon in (8.0, 4.0, 1.0):
            if epsilon > 1 or mechanism == "gaussian":
                lines.append(line("space", Setting(mechanism, epsilon, "vol", 16)))
    lines.append(line("space", Setting("vmvu", 1.0, "lang", 16)))
    lines.append(line("space", Setting("none", 0.0, "lang", 16)))
    lines.extend(renewed_lines())
    for start, source in (("manuals", "man"), ("volunteers", "vol")):
        lines.append(line("after", Setting("none"), start=start))
        lines.append(line("after", Setting("none", passes=5), start=start))
        for epsilon in (8.0, 1.0):
            lines.append(line("after", Setting("vmvu", epsilon), start=start))
            lines.append(line("after", Setting("sum", epsilon), start=start))
            lines.append(line("after", Setting("central", epsilon), start=start))
            lines.append(line("after", Setting("vmvu", epsilon, source, 16), start=start))
            lines.append(line("after", Setting("vmvu", epsilon, source, 64), start=start))
            lines.append(line("after", Setting("sum", epsilon, source, 64), start=start))
    for kind in ("gains", "lora"):
        lines.append(line("kinds", Setting("none"), kind))
        for epsilon in (8.0, 1.0):
            lines.append(line("kinds", Setting("vmvu", epsilon), kind))
            lines.append(line("kinds", Setting("sum", epsilon), kind))
            renewed = Setting("vmvu", epsilon, "vol", 16, refresh=True)
            lines.append(line("kinds", renewed, kind))
    for setting in (
        Setting("none"),
        Setting("sum", 8.0),
        Setting("sum", 1.0),
        Setting("vmvu", 8.0, "vol", 16, refresh=True),
    ):
        lines.append(line("lora-after", setting, "lora", start="volunteers"))
    for clients in (265, 530):
        for epsilon in (8.0, 1.0):
            lines.append(line("crowd", Setting("vmvu", epsilon, clients=clients, cohort=53)))
            lines.append(
                line("crowd", Setting("vmvu", epsilon, "man", 16, clients=clients, cohort=53))
            )
    for factor in (0.5, 0.25, 0.125):
        lines.append(line("crowd", Setting("vmvu", 1.0, noise=factor), seeds=1))
        lines.append(line("crowd", Setting("vmvu", 8.0, noise=factor), seeds=1))
        lines.append(line("crowd", Setting("vmvu", 1.0, "man", 64, noise=factor), seeds=1))
    lines.append(line("payloads", Setting("payloads", 4.0, "vol", 16), seeds=1))
    lines.append(line("payloads", Setting("payloads", 8.0), seeds=1))
    lines.append(line("cohort", Setting("none", cohort=53), seeds=1))
    lines.append(line("cohort", Setting("vmvu", 8.0, cohort=53), seeds=1))
    return lines


def renewed_lines() -> list[Line]:
    """Return lines whose directions are made anew every round, at the current model."""
    lines = []
    settings = [
        Setting("none", 0.0, "vol", 16, refresh=True),
        Setting("vmvu", 1.0, "vol", 16, refresh=True),
        Setting("vmvu", 4.0, "vol", 16, refresh=True),
        Setting("vmvu", 8.0, "vol", 16, refresh=True),
        Setting("sum", 1.0, "vol", 16, refresh=True),
        Setting("vmvu", 1.0, "vol", 64, refresh=True),
        Setting("vmvu", 8.0, "vol", 64, refresh=True),
        Setting("vmvu", 1.0, "man", 16, refresh=True),
        Setting("vmvu", 8.0, "man", 16, refresh=True),
        Setting("vmvu", 1.0, "man", 64, refresh=True),
        Setting("vmvu", 8.0, "man", 64, refresh=True),
        Setting("gaussian", 1.0, "vol", 16, refresh=True),
    ]
    for setting in settings:
        lines.append(line("renewed", setting))
    for start, source in (("volunteers", "vol"), ("manuals", "man")):
        for epsilon in (1.0, 8.0):
            setting = Setting("vmvu", epsilon, source, 16, refresh=True)
            lines.append(line("renewed-after", setting, start=start))
    return lines


LINES = all_lines()
