"""How long an honest payload is; the server refuses longer ones.

Idea     an attacker is not bound to the clip: it sends any payload that the server decodes. So the
         server refuses a payload longer than noise makes it, except with probability 2^-40:
         post-processing, which costs no privacy and, but for that probability, no honest client.
         This helps where payloads differ in length, as floats and wide codes do.
Symbols  d coordinates; lengths are in clips; T = log 2^40.
Source   docs/explanation/threat-model.md; docs/theory/numerics.md, "Lengths of honest
         payloads".
"""

from __future__ import annotations

import math

from quietbit.errors import Outlier

__all__ = [
    "DOUBT",
    "ROUNDING",
    "normal_length_upper",
    "refuse_longer",
]

DOUBT = 40 * math.log(2)  # T: an honest payload is refused with probability at most 2^-40
# More than the roundings of noise to its grid and to 32 bits, and of sums of squares.
ROUNDING = 1 + 2.0**-16


def normal_length_upper(dimension: int, deviation: float, doubt: float = DOUBT) -> float:
    """Return a length that an update plus normal noise exceeds with probability at most e^-doubt.

    >>> round(normal_length_upper(1000, 1.0), 1), 1000**0.5
    (37.3, 31.622776601683793)
    """
    noise = dimension * deviation**2
    spread = 2 * deviation * math.sqrt((noise + 2) * doubt)
    tail = 2 * deviation**2 * doubt
    return math.sqrt(noise + 1 + spread + tail) * ROUNDING


def refuse_longer(length: float, honest: float) -> None:
    """Refuse a payload that is longer than an honest one, or whose length is NaN."""
    if not length <= honest:
        rule = f"at most {honest:g}, as for honest clients"
        raise Outlier(f"length of the payload must be {rule}, got {length:g}.")
