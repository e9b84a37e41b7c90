"""Running a sweep's jobs in parallel; it can be killed and resumed with nothing run twice.

Idea     one process writes; workers only compute. A finished job is one line at the end of
         results.jsonl, on disk before the next is counted. Resuming reads the lines and runs what
         has none. A worker dies with the process that started it, however that one dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeAlias

from quietbit.errors import QuietbitError, check_int, check_real
from quietbit.federation.simulate.loop import INTERRUPTED, simulate
from quietbit.federation.simulate.problem import Problem
from quietbit_lab.experiment.grid import Job, Sweep
from quietbit_lab.experiment.lines import append_line, only_writer, read_lines
from quietbit_lab.experiment.record import modern, run_record

__all__ = [
    "RESULTS",
    "MakeProblem",
    "OnResult",
    "finished",
    "pending",
    "problem_key",
    "run_job",
    "run_sweep",
    "write_results",
]

RESULTS = "results.jsonl"
MakeProblem: TypeAlias = Callable[
    [Mapping[str, Any], int], Problem
]  # (task, seed) -> problem; must be picklable
OnResult: TypeAlias = Callable[
    [int, int, dict[str, Any]], None
]  # done, of how many, the newest result

_problems: dict[str, Problem] = {}  # a worker builds each problem once


def finished(folder: Path) -> list[dict[str, Any]]:
    """Return the results in a folder: complete lines, the first where a job has several."""
    results: dict[str, dict[str, Any]] = {}
    for line in read_lines(folder / RESULTS):
        if not isinstance(line, dict) or "job" not in line:
            raise QuietbitError(
                f"{folder / RESULTS} is not a file of results: a line names no job. Name another "
                "folder."
            )
        record = line.get("record")
        if isinstance(record, dict):
            known = {**line, "record": modern(record)}
        else:
            known = line
        results.setdefault(str(line["job"]), known)
    return list(results.values())


def run_sweep(
    sweep: Sweep,
    folder: Path,
    make_problem: MakeProblem,
    *,
    workers: int = 1,
    resume: bool = False,
    minutes: float | None = None,
    on_result: OnResult | None = None,
) -> int:
    """Run every job that has no result yet; returns how many were run.

    A folder with results is refused unless ``resume`` says that they are to be continued. After
    ``minutes`` no further result is waited for.
    """
    count = check_int(workers, "workers", 1, 1024)

    def results(todo: list[Job], is_late: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        with contextlib.closing(_results(todo, make_problem, count)) as computed:
            for result in computed:
                yield result
                if is_late():
                    return

    return write_results(sweep, folder, results, resume, minutes, on_result)


def write_results(
    sweep: Sweep,
    folder: Path,
    results: Callable[[list[Job], Callable[[], bool]], Iterator[dict[str, Any]]],
    resume: bool,
    minutes: float | None,
    on_result: OnResult | None,
) -> int:
    """Append what ``results`` computes of the jobs without a result; return how many.

    It is told how to find out whether the time is up.
    """
    until = math.inf
    if minutes is not None:
        until = time.monotonic() + 60 * check_real(minutes, "minutes")
    if sweep.race is not None:
        use = {"chooses": True}  # runs that only choose say so
    else:
        use = {}
    count = len(sweep.jobs)
    ran = 0
    with only_writer(folder):
        todo = pending(sweep, folder, resume)
        for result in results(todo, lambda: time.monotonic() >= until):
            append_line(folder / RESULTS, {"sweep": sweep.name, **use, **result})
            ran += 1
            if on_result is not None:
                on_result(count - len(todo) + ran, count, result)
    return ran


def pending(sweep: Sweep, folder: Path, resume: bool) -> list[Job]:
    """Return the jobs without a result; refuse a folder with results unless resumed."""
    done = {line["job"] for line in finished(folder)}
    if done and not resume:
        raise QuietbitError(
            f"{folder} already has {len(done)} results: add --resume, or name another folder."
        )
    return [job for job in sweep.jobs if job.identity not in done]


def problem_key(job: Job) -> str:
    """Return a key equal for jobs with one problem; clients of several examples follow the seed."""
    seed = job.setting.seed if job.task.get("samples", 1) != 1 else 0
    return repr((sorted(job.task.items()), seed))


def run_job(job: Job, make_problem: MakeProblem, *, fresh: bool = False) -> dict[str, Any]:
    """Run one job in this process; problems are made once for each task, unless ``fresh``."""
    key = problem_key(job)
    if fresh or key not in _problems:
        problem = make_problem(job.task, job.setting.seed)
        if not fresh:
            _problems[key] = problem
    else:
        problem = _problems[key]
    run = simulate(problem, job.setting.plan, job.setting.training)
    if run.status == INTERRUPTED:
        raise KeyboardInterrupt
    return {"job": job.identity, "label": job.label, "record": run_record(run, dict(job.task))}


def _results(todo: list[Job], make_problem: MakeProblem, workers: int) -> Generator[dict[str, Any]]:
    if workers == 1 or len(todo) <= 1:
        for job in todo:
            yield run_job(job, make_problem)
        return
    # Fresh processes: torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(os.getpid(),),
    )
    try:
        waiting: set[Future[dict[str, Any]]] = {
            pool.submit(run_job, job, make_problem) for job in todo
        }
        while waiting:
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                try:
                    yield future.result()
                except BrokenProcessPool as error:
                    raise QuietbitError(
                        "A worker of the sweep was killed: finished runs are saved, "
                        "and --resume continues."
                    ) from error
    finally:  # jobs not started are dropped, workers at work are told to stop
        at_work = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in at_work:
            worker.terminate()


def _start(parent: int) -> None:
    """Make a worker ignore Ctrl-C, which its parent handles, and die with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; Linux only
    if os.getppid() != parent:
        os._exit(1)
