"""Private federated training without an engine: the reference that engines are held against."""

from quietbit.federation.simulate.loop import Point, Run, simulate
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.federation.simulate.problem import LocalPlan, Problem, Score, Training

__all__ = ["LocalPlan", "Point", "Problem", "Run", "Score", "SimulatedPlan", "Training", "simulate"]
