"""A cohort's round on the GPU: right first, then how long.

Idea     counts are compared bit for bit with the reference and, at full size, with a digest of what the CPU kernel
         counted; then everything is timed in one run: medians of CUDA events around replays of a captured graph.
Rows     MNIST ScatterNet: 600 clients x 10 classes x 3,970 features (bias included); CIFAR-10: 500 x 10 x 15,553.
         count_ones = sampling and summing alone; a round = logits, softmax, clip factors, sampling, step. The plain way
         writes the per-client gradients and draws with torch.bernoulli.

    PYTHONPATH=src python benchmarks/gpu/cohort.py [--only check|one|many|codes|round|choices]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from cohort_rounds import KEY, Round, make_sampler, plain_counts
from timing import Task, seconds

from quietbit.kernel.tables import thresholds_on_device
from quietbit_lab.cohort import triton_host as host
from quietbit_lab.cohort.codes import reference_sums, sum_codes
from quietbit_lab.cohort.plan import bit_plan
from quietbit_lab.cohort.sums import BitLaw, count_ones, reference_counts
from quietbit_lab.cohort.words import key_numbers

MNIST, CIFAR = (600, 10, 3970), (500, 10, 15553)
DIGESTS = {"logistic": "fd7942a0d03e822a", "normal": "9c22639620538d54", "laplace": "9a4a63903e1101b6"}
RESULTS: dict[str, Any] = {"checks": {}, "times": {}}
LINES: list[str] = []


def note(line: str) -> None:
    LINES.append(line)
    print(line, flush=True)


def check(name: str, fine: bool) -> None:
    RESULTS["checks"][name] = bool(fine)
    print("right" if fine else "WRONG", name, flush=True)
    if not fine:
        note(f"WRONG: {name}")


def whole_values(shape: tuple[int, ...], seed: int, scale: float) -> np.ndarray[Any, Any]:
    """Multiples of a power of two, the same on every machine; some are zero."""
    numbers = np.random.default_rng(seed).integers(-1024, 1025, size=shape)
    return (numbers * (scale / 1024)).astype(np.float32)


def inputs(groups: int, shape: tuple[int, int, int], reach: float, seed: int = 1) -> tuple[Any, Any]:
    """Left and right whose products reach ``reach`` and sometimes beyond."""
    clients, classes, features = shape
    left = torch.tensor(whole_values((groups, clients, classes), seed, 1.0625 * reach), device="cuda")
    return left, torch.tensor(whole_values((clients, features), seed + 1, 1.0), device="cuda")


def digest(counts: Any) -> str:
    return hashlib.sha256(counts.cpu().numpy().astype("<i4").tobytes()).hexdigest()[:16]


def same(law: BitLaw, left: Any, right: Any, reach: float, generator: str) -> bool:
    """Are the counts on the device those of the reference?"""
    found = count_ones(law, left, right, words_key=KEY, reach=reach, generator=generator).cpu().numpy()
    arrays = left.cpu().numpy(), right.cpu().numpy()
    streams = list(range(left.shape[0]))
    return np.array_equal(found, reference_counts(law, *arrays, key_numbers(KEY), reach, generator, streams))


def check_counts(law: BitLaw, generator: str) -> None:
    shapes = [(2, (37, 10, 700)), (1, (5, 1, 1)), (1, (1, 3, 257)), (3, (9, 7, 33)), (1, (66, 62, 300))]
    for reach in (0.25, 1.0, 2.0, 5.0, 100.0) if generator == "philox" else (1.0, 5.0):
        for groups, shape in shapes if reach == 1.0 and law is BitLaw.LOGISTIC else shapes[:1]:
            left, right = inputs(groups, shape, reach)
            check(
                f"{law.value} reach {reach:g} {generator} {groups} x {shape}", same(law, left, right, reach, generator)
            )
    left, right = inputs(1, (37, 10, 700), 1.0)
    tiny, huge = left * 2.0**-140, right * 2.0**126
    huge[3, 5], huge[7, 9] = float("nan"), float("inf")
    check(f"{law.value} {generator}: extremes, NaN and infinity", same(law, tiny, huge, 1.0, generator))
    room, host.ROOM = host.ROOM, -(10**9)
    check(f"{law.value} {generator}: a list that overflows", same(law, left, right, 1.0, generator))
    host.ROOM = room
    torch.cuda.set_sync_debug_mode("error")
    try:
        count_ones(law, left, right, words_key=KEY, reach=1.0, generator=generator)
        check(f"{law.value} {generator}: the host waits for nothing", True)
    except RuntimeError:
        check(f"{law.value} {generator}: the host waits for nothing", False)
    torch.cuda.set_sync_debug_mode("default")
    if generator == "philox":
        left, right = inputs(1, MNIST, 1.0)
        found = digest(count_ones(law, left, right, words_key=KEY, reach=1.0))
        check(f"{law.value}, all of MNIST's shape: the CPU's counts", found == DIGESTS[law.value])


def check_law(law: BitLaw, generator: str) -> None:
    """36 x 23.8 million bits with equal t: the total within 7 standard deviations."""
    left = torch.full((36, 600, 10), 0.37, device="cuda")
    right = torch.ones((600, 3970), device="cuda")
    ones = int(count_ones(law, left, right, words_key=os.urandom(32), reach=1.0, generator=generator).sum())
    t = float(np.float32(0.37))
    chance = {"logistic": 1 / (1 + np.exp(-t)), "normal": _phi(t), "laplace": 1 - np.exp(-t) / 2}[law.value]
    size = left.shape[0] * 600 * 39700
    score = (ones - size * chance) / np.sqrt(size * chance * (1 - chance))
    check(f"frequency {law.value} {generator} score={score:.2f}", abs(score) < 7.0)


def _phi(t: float) -> float:
    return float(torch.special.ndtr(torch.tensor(t, dtype=torch.float64)))


def report(label: str, bits: float, task: Task, graph: bool = True) -> float:
    took = seconds(task, graph)
    RESULTS["times"][label] = {"seconds": took, "billions": bits / took / 1e9}
    note(f"{label:58s} {took * 1e6:10.1f} us {bits / took / 1e9:9.1f} G/s")
    return took


def counting(law: BitLaw, groups: int, shape: tuple[int, int, int], reach: float, generator: str = "philox") -> Task:
    left, right = inputs(groups, shape, reach)
    key = torch.tensor(np.frombuffer(KEY, "<i4").astype(np.int32), device="cuda")
    return partial(count_ones, law, left, right, words_key=key, reach=reach, generator=generator)


def size_of(shape: tuple[int, int, int], groups: int = 1) -> float:
    return float(groups * shape[0] * shape[1] * shape[2])


def time_one() -> None:
    cases = [(BitLaw.LOGISTIC, reach) for reach in (0.25, 1.0, 2.0, 3.0, 5.0)]
    cases += [(BitLaw.NORMAL, 0.5), (BitLaw.NORMAL, 2.0), (BitLaw.LAPLACE, 1.0), (BitLaw.LAPLACE, 100.0)]
    for law, reach in cases:
        plan = bit_plan(law, reach, host.TERMS)
        label = f"{law.value} reach {reach:g} ({plan.form} {len(plan.coefficients)})"
        report(f"{label}, MNIST", size_of(MNIST), counting(law, 1, MNIST, reach))
    report("logistic reach 1, MNIST, chacha12", size_of(MNIST), counting(BitLaw.LOGISTIC, 1, MNIST, 1.0, "chacha12"))
    report("logistic reach 1, CIFAR-10", size_of(CIFAR), counting(BitLaw.LOGISTIC, 1, CIFAR, 1.0))
    report("logistic reach 1, MNIST, from Python", size_of(MNIST), counting(BitLaw.LOGISTIC, 1, MNIST, 1.0), False)


def time_many() -> None:
    for groups in (2, 6, 36, 84, 252):
        task = counting(BitLaw.LOGISTIC, groups, MNIST, 1.0)
        report(f"logistic reach 1, MNIST, {groups} configurations", size_of(MNIST, groups), task)
    for law, reach in ((BitLaw.LOGISTIC, 0.25), (BitLaw.LOGISTIC, 5.0), (BitLaw.NORMAL, 2.0)):
        task = counting(law, 36, MNIST, reach)
        report(f"{law.value} reach {reach:g}, MNIST, 36 configurations", size_of(MNIST, 36), task)


def time_choices() -> None:
    """How clients are split over programs, and how many classes of codes a thread adds up."""
    kept = host._clients_per_program
    for groups, choices in ((1, (3, 5, 10, 12)), (36, (50, 55, 75, 150, 300, 600))):
        for each in choices:
            setattr(host, "_clients_per_program", lambda *given, each=each: each)  # noqa: B010
            task = counting(BitLaw.LOGISTIC, groups, MNIST, 1.0)
            report(f"{groups} x MNIST: {each} clients per program", size_of(MNIST, groups), task)
    setattr(host, "_clients_per_program", kept)  # noqa: B010


def time_round() -> None:
    """A round of each of the paper's mechanisms, and the plain way."""
    one, bits = Round(MNIST), size_of(MNIST)
    whole: dict[str, Task] = {
        "one-bit I-MVU": partial(one.one_bit, BitLaw.LOGISTIC, 1.0),
        "one-bit I-MVU, epsilon 5": partial(one.one_bit, BitLaw.LOGISTIC, 5.0),
        "SignSGD (Gaussian)": partial(one.one_bit, BitLaw.NORMAL, 1.0),
        "SignSGD (Laplace)": partial(one.one_bit, BitLaw.LAPLACE, 1.0),
        "Gaussian (exact law of the sum)": partial(one.gaussian, 1.0),
        **{f"I-MVU by sum_codes, {b} bits": partial(one.several_bits, b) for b in (1, 2, 3, 4)},
        **{f"MVU, {b} bits, plain torch": partial(one.dithered, b) for b in (1, 3)},
        "Skellam, plain torch": partial(one.skellam, 16),
        "one-bit I-MVU, plain torch": partial(one.one_bit, BitLaw.LOGISTIC, 1.0, plain_counts),
        "nothing (logits, softmax and clipping alone)": one.left,
    }
    for name, task in whole.items():
        report(f"a round, {name}", bits, task)
    for name in ("one-bit I-MVU", "one-bit I-MVU, plain torch"):
        report(f"a round, {name}, from Python", bits, whole[name], False)
    other = Round(CIFAR)
    report("a round of CIFAR-10, one-bit I-MVU", size_of(CIFAR), partial(other.one_bit, BitLaw.LOGISTIC, 1.0))


def time_codes() -> None:
    for b in (1, 2, 3, 4):
        left, right = inputs(1, MNIST, 1.0)
        key = torch.tensor(np.frombuffer(KEY, "<i4").astype(np.int32), device="cuda")
        sampler = make_sampler(b)
        plan = thresholds_on_device(sampler)
        task = partial(sum_codes, sampler, left, right, table=np.arange(2**b), words_key=key)
        report(f"sum_codes, {b} bits (degree {plan.degree}), MNIST", size_of(MNIST), task)
        many, _ = inputs(12, MNIST, 1.0)
        task = partial(sum_codes, sampler, many, right, table=np.arange(2**b), words_key=key)
        report(f"sum_codes, {b} bits, MNIST, 12 configurations", size_of(MNIST, 12), task)


def check_sums(bits: int) -> dict[str, bool]:
    """Sums of codes against the reference; a steep law and a list that overflows among them."""
    for epsilon, room in ((1.0, host.ROOM), (3.0, host.ROOM), (1.0, -(10**9))):
        sampler, table = make_sampler(bits, epsilon), np.arange(2**bits) ** 2 * 2**33 - 5
        left, right = inputs(2, (37, 10, 700), 1.0)
        kept, host.ROOM = host.ROOM, room
        found = sum_codes(sampler, left, right, table=table, words_key=KEY).cpu().numpy()
        host.ROOM = kept
        arrays = left.cpu().numpy(), right.cpu().numpy()
        wanted = reference_sums(sampler, *arrays, table, key_numbers(KEY), [0, 1])
        check(f"sums of codes, {bits} bits, epsilon {epsilon:g}, room {room}", np.array_equal(found, wanted))
    return dict(RESULTS["checks"])


def check_one(case: tuple[BitLaw, str]) -> dict[str, bool]:
    """All checks of one law and generator, in a process of its own: compiling takes most of the time."""
    check_counts(*case)
    check_law(*case)
    return dict(RESULTS["checks"])


def check_all() -> None:
    cases = [(law, generator) for law in BitLaw for generator in ("philox", "chacha12")]
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        codes = [pool.submit(check_sums, bits) for bits in (1, 2, 3, 4)]
        for found in pool.map(check_one, cases):
            RESULTS["checks"].update(found)
        for done in codes:
            RESULTS["checks"].update(done.result())
    wrong = [name for name, fine in RESULTS["checks"].items() if not fine]
    note(f"checks: {len(RESULTS['checks']) - len(wrong)} of {len(RESULTS['checks'])} right {wrong}")


def main() -> None:
    steps: dict[str, Callable[[], None]] = {
        "check": check_all, "one": time_one, "many": time_many, "codes": time_codes, "round": time_round,
        "choices": time_choices,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=list(steps))
    chosen = parser.parse_args()
    began = time.perf_counter()
    RESULTS["machine"] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__
    }  # fmt: skip
    for name, step in steps.items():
        if chosen.only in (None, name):
            print(f"-- {name} at {time.perf_counter() - began:.1f} s", flush=True)
            step()
    print(f"-- done at {time.perf_counter() - began:.1f} s\n")
    print("\n".join(LINES))
    folder = os.environ.get("OUT")
    if folder:
        Path(folder, "cohort.json").write_text(json.dumps(RESULTS, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
