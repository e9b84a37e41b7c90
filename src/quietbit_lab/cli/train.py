"""``quietbit train``: one private federated training, with a live account and a record."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded_up, show_json
from quietbit.cli.files import check_outputs
from quietbit.cli.options import NormOption, TrustOption
from quietbit.errors import InvalidParameter, QuietbitError

if TYPE_CHECKING:
    from quietbit.simulate.loop import Point, Run
    from quietbit_lab.experiment.record import Setting
    from quietbit_lab.task.registry import TaskSpec

__all__ = ["DataOption", "ThreadsOption", "bytes_shown", "train"]

DataOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where data sets are; QUIETBIT_DATA, or a shared/data nearby.")
]
ThreadsOption = Annotated[int, typer.Option(help="Threads; they change no digit of the result.")]
LOOKS = 20  # scores along the way, unless asked for otherwise


def train(
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="digits (unless given), mnist, fashion-mnist, cifar10, femnist, or module:function for your own.",
        ),
    ] = None,
    mechanism: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="imvu, vmvu, mvu, gaussian, laplace, sign, skellam, an installed one, auto (the best), or none (no "
            "privacy).",
        ),
    ] = "imvu",
    adjacency: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="The neighbouring world: zero-out (the update is zero) or replace-one (any other); always to be said.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget of the whole run: calibrate to it, or stop before it is exceeded.")
    ] = None,
    design_epsilon: Annotated[
        float | None, typer.Option(help="Of the design, per release (imvu, mvu), instead of calibrating.")
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(help="Noise in units of the sensitivity (gaussian, laplace, sign, skellam), likewise."),
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    unit: Annotated[str, typer.Option(metavar="client|sample", help="Whose data the guarantee protects.")] = "client",
    trust: TrustOption = "local",
    min_honest_clients: Annotated[
        int | None,
        typer.Option(help="Clients of a cohort that answer and do not collude (secure-aggregation); all unless given."),
    ] = None,
    bits: Annotated[int | None, typer.Option(help="Bits per parameter.")] = None,
    levels: Annotated[int | None, typer.Option(help="Levels of the design (imvu, mvu).")] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="K|auto", help="Rotated coordinates that a client keeps, a power of two.")
    ] = None,
    downlink: Annotated[
        str, typer.Option(metavar="full|replay", help="Send the model down, or the round, which clients replay.")
    ] = "full",
    beta: Annotated[
        float | None, typer.Option(help="Stretches small coordinates over the design's range (imvu).")
    ] = None,
    clamp: Annotated[
        bool | None, typer.Option("--clamp/--no-clamp", help="Cut large coordinates (imvu); chosen unless given.")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of imvu: unbiased-at-zero (unless given) or alphabet.")
    ] = None,
    clip: Annotated[
        float, typer.Option(help="Largest norm of an update (of a sample's gradient for sample-level).")
    ] = 0.5,
    adaptive_clip: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Move the clip to leave this share of updates alone (0.5, say), by a private bit of each.",
        ),
    ] = None,
    norm: NormOption = "l2",
    lr: Annotated[float, typer.Option(help="The server's step size.")] = 0.1,
    momentum: Annotated[float, typer.Option(help="The server's momentum.")] = 0.5,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 100,
    cohort: Annotated[int, typer.Option(help="Clients per round.")] = 100,
    participation: Annotated[
        str,
        typer.Option(
            metavar="each-once|sampled|secret-order|poisson",
            help="Each client once per epoch, drawn afresh every round, once per epoch in an order nobody knows, or "
            "(trust central) each by itself and in secret.",
        ),
    ] = "each-once",
    local_steps: Annotated[int, typer.Option(help="Gradient steps of a client per round.")] = 1,
    local_rate: Annotated[float, typer.Option(help="Their size, where there are several.")] = 0.1,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="linear, scatter, cnn or efficientnet-head; the paper's unless given.")
    ] = "",
    clients: Annotated[str, typer.Option(metavar="examples|writers", help="What a client is.")] = "",
    samples: Annotated[int, typer.Option(help="Examples per client, where clients are examples.")] = 1,
    least: Annotated[int, typer.Option(help="Leave out writers with fewer examples.")] = 1,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between scores; 0 means twenty scores in all.")] = 0,
    rng: Annotated[
        str | None,
        typer.Option(metavar="secure|seeded", help="Where random bits come from; seeded (not private) with a seed."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes a run reproducible, its random bits too unless --rng says secure.")
    ] = None,
    data: DataOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda", help="Where torch works; a linear model's cohort is drawn as one sum, by the same law."
        ),
    ] = None,
    threads: ThreadsOption = 1,
    repeat: Annotated[Path | None, typer.Option(metavar="RECORD", help="Take all settings from this record.")] = None,
    out: Annotated[Path | None, typer.Option(help="Save the record of the run, as JSON.")] = None,
    json: JsonOption = False,
) -> None:
    """Train a model on clients whose updates leave them private and packed.

    Example: quietbit train --task digits --adjacency zero-out --epsilon 8 --clip 1 --lr 0.6 --rounds 32 --cohort 359
    """
    # Imported here, so that --help need not wait for numpy.
    from quietbit_lab.experiment.record import Setting, read_record
    from quietbit_lab.task.own import check_named
    from quietbit_lab.task.registry import TaskSpec

    if repeat is not None:
        record_of = read_record(repeat)
        setting, spec = Setting.from_json(record_of["settings"]), TaskSpec.from_json(record_of["task"])
        check_named(spec.name, task)
    else:
        if adjacency is None and mechanism == "none":
            adjacency = "zero-out"  # there is no guarantee that it could be part of
        if adjacency is None:
            raise InvalidParameter.of("adjacency", "given: zero-out or replace-one")
        spec = TaskSpec(task or "digits", model, clients, samples, least)
        kept = int(keep) if keep is not None and keep.isdigit() else keep
        chosen = {
            "mechanism": mechanism, "clip": clip, "norm": norm, "adjacency": adjacency, "epsilon": epsilon,
            "delta": delta, "unit": unit, "trust": trust, "cohort": cohort, "participation": participation,
            "min_honest_clients": min_honest_clients, "design_epsilon": design_epsilon,
            "noise_multiplier": noise_multiplier, "bits": bits, "levels": levels, "keep": kept, "beta": beta,
            "clamp": clamp, "decoder": decoder, "clip_quantile": adaptive_clip, "downlink": downlink,
            "downlink_start": "app" if downlink == "replay" else None,
            "rng": rng if rng is not None else "secure" if seed is None else "seeded",
            "seed": secrets.randbits(32) if seed is None else seed,
        }  # fmt: skip
        steps = {
            "lr": lr, "rounds": rounds, "momentum": momentum, "local_steps": local_steps, "local_rate": local_rate,
            "evaluate_every": evaluate_every or max(1, rounds // LOOKS),
        }  # fmt: skip
        setting = Setting.from_json({**chosen, **steps})
    check_outputs(out)
    _train(spec, setting, data, device, threads, out, json)


def _train(
    spec: TaskSpec, setting: Setting, data: Path | None, device: str | None, threads: int, out: Path | None, json: bool
) -> None:
    from quietbit._files import write_json
    from quietbit.simulate.loop import INTERRUPTED, TARGET, simulate
    from quietbit_lab.experiment.record import run_record
    from quietbit_lab.task.linear import LinearSoftmax
    from quietbit_lab.task.registry import build_task

    if device is not None:
        from quietbit_lab.task.linear_device import open_device

        open_device(device)
    with progress_bar("Reading data", quiet=json, lines=True) as report:
        told = _every_tenth(report)
        problem = build_task(spec, data=data, seed=setting.seed, device=device or "cpu", report=told)
    with progress_bar("Training", quiet=json) as report:
        last = ""

        def show(number: int, point: Point | None) -> None:
            nonlocal last
            last = _shown(point) if point is not None else last
            report(number / setting.training.rounds, f"round {number:,} of {setting.training.rounds:,}{last}")

        if device is not None and isinstance(problem, LinearSoftmax):
            run, kept = _as_a_whole(problem, setting, spec, device, show)
        else:
            run = simulate(problem, setting.plan, setting.training, threads=threads, progress=show)
            kept = run_record(run, spec.to_json(), device=device or "cpu")
    if out is not None:
        write_json(out, kept)
    if json:
        show_json(kept)
    elif run.points:
        record(
            f"{spec.name}, {setting.plan.mechanism}, {run.rounds:,} rounds of {setting.plan.cohort:,}",
            _rows(run, kept["draws"], out),
            False,
        )
    if run.status == INTERRUPTED:
        raise KeyboardInterrupt
    if run.reason and run.status != TARGET:
        saved = f" What was finished is in {out}." if out is not None else ""
        raise QuietbitError(run.reason + saved)


def _as_a_whole(problem: Any, setting: Setting, spec: TaskSpec, device: str, show: Any) -> tuple[Run, dict[str, Any]]:
    """Train a linear model on a device, as a batch of one."""
    from quietbit.simulate.loop import INTERRUPTED
    from quietbit_lab.task.batch import Batch
    from quietbit_lab.task.batch_sweep import batch_records
    from quietbit_lab.task.linear_device import DeviceProblem, open_device

    batch = Batch(DeviceProblem(problem, open_device(device)), [setting])

    def watch(number: int, points: Any) -> bool:
        show(number, points[0])
        return True

    try:
        batch.advance(setting.training.rounds, watch)
    except KeyboardInterrupt:
        batch.end_all(INTERRUPTED, f"Interrupted in round {batch.number + 1}.")
    runs = batch.runs()
    return runs[0], batch_records(batch, runs, spec.to_json())[0]


def _every_tenth(report: Any) -> Any:
    """Ten lines at most where there is no terminal."""
    told = -1

    def thinned(fraction: float, message: str) -> None:
        nonlocal told
        if int(fraction * 10) > told:
            told = int(fraction * 10) if fraction < 1 else -1
            report(fraction, message)

    return thinned


def _shown(point: Point) -> str:
    found = f", {100 * point.score.accuracy:.1f} % right"
    if point.guarantee is not None:
        found += f", epsilon <= {rounded_up(point.guarantee.epsilon_upper, 3)}"
    return found + f", {bytes_shown(point.uplink_bytes)} sent"


def _rows(run: Run, draws: str, out: Path | None) -> list[Row]:
    last, guarantee = run.points[-1], run.guarantee
    rows = [
        Row(
            "accuracy",
            "test accuracy",
            last.score.accuracy,
            f"{100 * last.score.accuracy:.2f} % after {last.round:,} rounds",
        ),
        Row("status", "status", run.status, f"{run.status}{': ' + run.reason if run.reason else ''}"),
        Row("guarantee", "guarantee", "", guarantee.sentence() if guarantee else "none: the run was not private"),
        *_expected(run),
        *_second(run),
        Row("bytes", "uplink per client", run.bytes_per_client, f"{run.bytes_per_client:,} bytes per round"),
        Row("uplink", "uplink in all", last.uplink_bytes, bytes_shown(last.uplink_bytes)),
        Row("downlink", "downlink in all", run.downlink_bytes, bytes_shown(run.downlink_bytes)),
        Row("seconds", "time", run.seconds, f"{run.seconds:.1f} s"),
    ]
    if run.clips:
        rows.append(Row("clips", "clip", run.clips, f"from {run.clips[0]:.3g} to {run.clips[-1]:.3g}"))
    words = "seeded: reproducible, NOT private" if run.plan.rng == "seeded" else "the operating system's"
    rows.append(Row("rng", "random bits", run.plan.rng, words))
    rows.append(Row("draws", "drawn at random", draws))
    if out is not None:
        rows.append(Row("saved", "saved as", str(out)))
    return rows


def _expected(run: Run) -> list[Row]:
    """Return rows for what ``auto`` chose, what was to be expected, and the gain where it is not one."""
    from quietbit.mechanism.calibrate import AUTO, AUTO_RULE
    from quietbit.mechanism.registry import family_of

    if run.mechanism is None or run.expected is None:
        return []
    rows, gain = [Row("expectation", "to be expected", run.expected.sentence())], run.mechanism.error().gain
    if run.plan.mechanism == AUTO:
        rows.insert(
            0, Row("mechanism", "auto took", family_of(run.mechanism), f"{family_of(run.mechanism)}: {AUTO_RULE}")
        )
    if abs(gain - 1) > 1e-6:
        text = f"{gain:.4g}: a step is this times as long as its size says"
        rows.append(Row("gain", "gain of the decoder", gain, text))
    return rows


def _second(run: Run) -> list[Row]:
    """Return the row of the guarantee against those who see only the models, if there is one."""
    pair = run.observers
    return [Row("observers", "beside it", "", pair.second())] if pair is not None else []


def bytes_shown(count: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return ""
