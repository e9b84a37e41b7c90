"""What a model remembers: exposure of planted sentences, and a lower bound on epsilon."""

from quietbit_lab.memory.exposure import Exposure, exposures
from quietbit_lab.memory.one_run import LowerBound, chance_upper, guesses, lower_bound

__all__ = ["Exposure", "LowerBound", "chance_upper", "exposures", "guesses", "lower_bound"]
