"""Time on a GPU: medians of CUDA events around replays of a captured graph.

Idea     a graph leaves Python's launch overhead out; what cannot be captured is timed as it is
         called.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

Task = Callable[[], Any]


def seconds(task: Task, graph: bool = True, budget: float = 0.06) -> float:
    """The median over repeats of the mean time of a few replays."""
    task()
    torch.cuda.synchronize()
    replay: Task = task
    if graph:
        try:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                task()
            replay = captured.replay
        except RuntimeError as error:
            print("no graph:", str(error).splitlines()[0], flush=True)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(times: int) -> float:
        begin.record()
        for _ in range(times):
            replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / times

    once = timed(2)
    times = max(2, min(200, int(budget / 7 / max(once, 1e-7))))
    return statistics.median(timed(times) for _ in range(7))
