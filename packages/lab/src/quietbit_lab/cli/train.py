"""``quietbit train``: one private federated training, with a live account and a record."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded_up, show_json
from quietbit.cli.options import check_outputs, option, takes, usual
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit_lab.cli.options import number_or_word

if TYPE_CHECKING:
    from quietbit.federation.simulate.loop import Point, Run
    from quietbit_lab.experiment.record import Setting
    from quietbit_lab.task.registry import TaskSpec

__all__ = ["QUIET", "DataOption", "train"]

DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where data sets are; QUIETBIT_DATA, or a shared/data nearby."
    ),
]
QUIET = 5.0  # seconds between lines of progress where there is no terminal
LOOKS = 20  # scores along the way, unless asked for otherwise
# Options of the plan and of the training have the names that these have in a record.
OF_PLAN = (
    option(
        "mechanism",
        str,
        "imvu, vmvu, mvu, gaussian, laplace, sign, skellam, an installed one, auto (the best), or "
        "none (no privacy).",
        "imvu",
        "NAME",
    ),
    option(
        "adjacency",
        str,
        "The neighbouring world: zero-out (the update is zero) or replace-one (any other); always "
        "to be said.",
        metavar="WORD",
    ),
    option(
        "epsilon", float, "Budget of the whole run: calibrate to it, or stop before it is exceeded."
    ),
    option(
        "design_epsilon", float, "Of the design, per release (imvu, mvu), instead of calibrating."
    ),
    option(
        "noise_multiplier",
        float,
        "Noise in units of the sensitivity (gaussian, laplace, sign, skellam), likewise.",
    ),
    usual("delta", 1e-5),
    option("unit", str, "Whose data the guarantee protects.", "client", "client|sample"),
    usual("trust", "local"),
    option(
        "min_honest_clients",
        int,
        "Clients of a cohort that answer and do not collude (secure-aggregation); all by default.",
    ),
    option("bits", int, "Bits per parameter."),
    option("levels", int, "Levels of the design (imvu, mvu)."),
    option(
        "coordinates",
        str,
        "Rotated coordinates that a client keeps, a power of two.",
        metavar="K|auto",
    ),
    option(
        "downlink",
        str,
        "Send the model down, or the round, which clients replay.",
        "full",
        "full|replay",
    ),
    usual("beta"),
    option(
        "clamp",
        bool,
        "Cut large coordinates (imvu); chosen unless given.",
        flag="--clamp/--no-clamp",
    ),
    option("decoder", str, "Of imvu: unbiased-at-zero (unless given) or alphabet.", metavar="NAME"),
    option(
        "clip",
        str,
        "Largest norm of an update (of a gradient at sample level); auto: begin at 1, and move it.",
        "0.5",
        "NUMBER|auto",
    ),
    option(
        "clip_scouts",
        int,
        "One client in N measures the clip instead of sending an update; 20, behind masks 40.",
        metavar="N",
    ),
    usual("norm", "l2"),
    option("cohort", int, "Clients per round.", 100),
    option(
        "participation",
        str,
        "Each client once per epoch, drawn afresh every round, "
        "each by itself in secret (trust central), or client r with a frequency of 1/r.",
        "each-once",
        "each-once|sampled|poisson|zipf",
    ),
    option(
        "rng",
        str,
        "Where random bits come from; seeded (not private) with a seed.",
        metavar="secure|seeded",
    ),
    option("seed", int, "Makes a run reproducible, its random bits too unless --rng says secure."),
)
OF_TRAINING = (
    option("lr", float, "The server's step size.", 0.1),
    option("momentum", float, "The server's momentum.", 0.5),
    option("rounds", int, "Rounds of training.", 100),
    option("local_steps", int, "Gradient steps of a client per round.", 1),
    option("local_rate", float, "Their size, where there are several.", 0.1),
    option("evaluate_every", int, "Rounds between scores; 0 means twenty scores in all.", 0),
)
OTHERS = (
    option(
        "task",
        str,
        "digits (the default), mnist, fashion-mnist, cifar10, femnist, or your module:function.",
        metavar="NAME",
    ),
    option(
        "model",
        str,
        "linear, scatter, cnn or efficientnet-head; the paper's unless given.",
        "",
        "NAME",
    ),
    option("clients", str, "What a client is.", "", "examples|writers"),
    option("samples", int, "Examples per client, where clients are examples.", 1),
    option("least", int, "Leave out writers with fewer examples.", 1),
    option(
        "adaptive_clip",
        float,
        "Move the clip to leave this share of updates alone, by scouts.",
        metavar="SHARE",
    ),
)


@takes(*OTHERS, *OF_PLAN, *OF_TRAINING)
def train(
    data: DataOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda",
            help="Where torch works, for networks and features of images.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads; they change no digit of the result.")] = 1,
    repeat: Annotated[
        Path | None, typer.Option(metavar="RECORD", help="Take all settings from this record.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save the record of the run, as JSON.")] = None,
    json: JsonOption = False,
    **given: Any,
) -> None:
    """Train a model on clients whose updates leave them private and packed.

    Example: quietbit train --task digits --adjacency zero-out --epsilon 8 --clip 1 --lr 0.6
    --rounds 32 --cohort 359
    """
    # Imported here, so that --help need not wait for numpy.
    from quietbit_lab.experiment.record import Setting, read_record
    from quietbit_lab.task.own import check_named
    from quietbit_lab.task.registry import TaskSpec

    if repeat is not None:
        record_of = read_record(repeat)
        setting = Setting.from_json(record_of["settings"])
        spec = TaskSpec.from_json(record_of["task"])
        check_named(spec.name, given["task"])
    else:
        spec = TaskSpec(
            given["task"] or "digits",
            *(given[name] for name in ("model", "clients", "samples", "least")),
        )
        setting = Setting.from_json(_settings(given))
    check_outputs(out)
    _train(spec, setting, data, device, threads, out, json)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, as a record has them."""
    values = {setting.name: given[setting.name] for setting in (*OF_PLAN, *OF_TRAINING)}
    if given["adjacency"] is None:
        if given["mechanism"] != "none":
            remedy = "add --adjacency zero-out or --adjacency replace-one"
            raise InvalidParameter.of("adjacency", "given", None, remedy)
        values["adjacency"] = "zero-out"  # there is no guarantee that it could be part of
    kept = values.pop("coordinates")
    values["keep"] = int(kept) if kept is not None and kept.isdigit() else kept
    values["rng"] = given["rng"] or ("secure" if given["seed"] is None else "seeded")
    values["seed"] = secrets.randbits(32) if given["seed"] is None else given["seed"]
    values["clip"] = number_or_word(given["clip"])
    values["clip_quantile"] = given["adaptive_clip"]
    values["evaluate_every"] = given["evaluate_every"] or max(1, given["rounds"] // LOOKS)
    return values


def _train(
    spec: TaskSpec,
    setting: Setting,
    data: Path | None,
    device: str | None,
    threads: int,
    out: Path | None,
    json: bool,
) -> None:
    from quietbit._files import write_json
    from quietbit.federation.simulate.loop import INTERRUPTED, TARGET, simulate
    from quietbit_lab.experiment.record import run_record
    from quietbit_lab.task.registry import build_task

    if device is not None:
        from quietbit_lab.task.linear_device import open_device

        open_device(device)
    with progress_bar("Reading data", quiet=json, lines=True, every=QUIET) as report:
        problem = build_task(
            spec, data=data, seed=setting.seed, device=device or "cpu", report=report
        )
    with progress_bar("Training", quiet=json) as report:
        last = ""

        def show(number: int, point: Point | None) -> None:
            nonlocal last
            if point is not None:
                last = _shown(point)
            report(
                number / setting.training.rounds,
                f"round {number:,} of {setting.training.rounds:,}{last}",
            )

        run = simulate(problem, setting.plan, setting.training, threads=threads, progress=show)
    saved_record = run_record(run, spec.to_json(), device=device or "cpu")
    if out is not None:
        write_json(out, saved_record)
    if json:
        show_json(saved_record)
    elif run.points:
        title = f"{spec.name}, {setting.plan.mechanism.name}, "
        title += f"{run.rounds:,} rounds of {setting.plan.cohort:,}"
        record(title, _rows(run, saved_record["protects"], out), False)
    if run.status == INTERRUPTED:
        raise KeyboardInterrupt
    if run.reason and run.status != TARGET:
        if out is not None:
            saved = f" What was finished is in {out}."
        else:
            saved = ""
        raise QuietbitError(run.reason + saved)


def _shown(point: Point) -> str:
    from quietbit_lab.report.plots import shown_size

    words = f", {100 * point.score.accuracy:.1f} % right"
    if point.guarantee is not None:
        words += f", epsilon <= {rounded_up(point.guarantee.epsilon_upper, 3)}"
    return words + f", {shown_size(point.uplink_bytes)} sent"


def _rows(run: Run, protects: str, out: Path | None) -> list[Row]:
    from quietbit_lab.report.plots import shown_size

    last = run.points[-1]
    guarantee = run.guarantee
    rows = [
        Row(
            "accuracy",
            "test accuracy",
            last.score.accuracy,
            f"{100 * last.score.accuracy:.2f} % after {last.round:,} rounds",
        ),
        Row(
            "status", "status", run.status, f"{run.status}{': ' + run.reason if run.reason else ''}"
        ),
        *([Row("participation", "releases per client", run.spread)] if run.spread else []),
        Row(
            "guarantee",
            "guarantee",
            "",
            guarantee.sentence() if guarantee else "none: the run was not private",
        ),
        *_expected(run),
        Row(
            "bytes",
            "uplink per client",
            run.bytes_per_client,
            f"{run.bytes_per_client:,} bytes per round",
        ),
        Row("uplink", "uplink in all", last.uplink_bytes, shown_size(last.uplink_bytes)),
        Row("downlink", "downlink in all", run.downlink_bytes, shown_size(run.downlink_bytes)),
        Row("seconds", "time", run.seconds, f"{run.seconds:.1f} s"),
    ]
    if run.clips:
        rows.append(
            Row(
                "clips",
                "clip",
                run.clips,
                f"from {run.clips[0]:.3g} to {run.clips[-1]:.3g}{_clip_note(run)}",
            )
        )
    if run.plan.rng == "seeded":
        words = "seeded: reproducible, NOT private"
    else:
        words = "the operating system's"
    rows.append(Row("rng", "random bits", run.plan.rng, words))
    rows.append(Row("protects", "whom its numbers protect", protects))
    if out is not None:
        rows.append(Row("saved", "saved as", str(out)))
    return rows


def _clip_note(run: Run) -> str:
    """Return why the clip could not move, where it could not."""
    from quietbit.federation.moving_clip import why_it_stays
    from quietbit.mechanism.scouts import Scouted

    if not isinstance(run.mechanism, Scouted) or run.expected is None:
        return ""
    releases = run.rounds * run.plan.cohort
    why = why_it_stays(run.mechanism, run.plan.clip, run.expected.noise, releases)
    return "" if why is None else f" ({why})"


def _expected(run: Run) -> list[Row]:
    """Return rows: what ``auto`` chose, the expected noise, and a decoder's gain other than 1."""
    from quietbit.mechanism.calibrate import AUTO_RULE
    from quietbit.mechanism.registry import AUTO, family_of

    if run.mechanism is None or run.expected is None:
        return []
    rows = [Row("expectation", "to be expected", run.expected.sentence())]
    gain = run.mechanism.error().gain
    if run.mechanism.unitless:
        gain /= run.plan.clip
    if run.plan.mechanism.name == AUTO:
        rows.insert(
            0,
            Row(
                "mechanism",
                "auto took",
                family_of(run.mechanism),
                f"{family_of(run.mechanism)}: {AUTO_RULE}",
            ),
        )
    if abs(gain - 1) > 1e-6:
        text = f"{gain:.4g}: a step is this times as long as its size says"
        rows.append(Row("gain", "gain of the decoder", gain, text))
    return rows
