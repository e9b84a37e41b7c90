"""One of every baseline that is a mechanism, in the balls of the library's own."""

from __future__ import annotations

from typing import Any

from core.mechanism.makers import POINTED, ROUND
from quietbit_lab.baseline.cldp import SampledCoefficient
from quietbit_lab.baseline.dp_rec import RelativeEntropyCoding
from quietbit_lab.baseline.mmrc import MinimalRandomCoding
from quietbit_lab.baseline.privunit import PrivUnit
from quietbit_lab.baseline.rrsc import RotatingSimplex
from quietbit_lab.baseline.sqkr import SubsampledSigns
from quietbit_lab.baseline.staircase import Staircase

BASELINES: dict[str, Any] = {
    "privunit": PrivUnit(ROUND, 2.0, 0.2),
    "rrsc": RotatingSimplex(ROUND, 3, 3.0, 2),
    "mmrc": MinimalRandomCoding(ROUND, 4, 3.0, 0.2),
    "sqkr": SubsampledSigns(ROUND, 3, 3.0, level=2.5),
    "cldp": SampledCoefficient(POINTED, 1, 1.5),
    "cldp three bits": SampledCoefficient(POINTED, 3, 3.0, 5),
    "dp-rec": RelativeEntropyCoding(ROUND, 4, 1.5, 0.8),
    "staircase": Staircase(POINTED, 1.0, 2.0, 0.4),
    "staircase zero-out": Staircase(POINTED, 2.0, 1.0, 0.3),
}
