"""Normals in a few bits: the best alphabets for N(0, 1), with a decoder that keeps small means.

Idea     a private vector whose entries are nearly standard normal may be rounded to 2^b levels after the fact: that
         is post-processing and costs no privacy, only a little variance. The levels with the least squared error are
         Lloyd and Max's: every level is the mean of its cell, every threshold the middle between two levels. Decoded
         as they are they shrink a small mean s to g s, g = E[x Q(x)]; so they are divided by g.
Symbols  Q = the rounding, D = E (x - Q)^2, g = E[x Q(x)] = 1 - D; b = bits.
Source   Max (1960), Lloyd (1982): conditions for the levels. Stein's identity E f(x + s) = s E[x f(x)] + O(s^3) for
         odd f.

The decoder Q/g has E[Q(x + s)/g] = s (1 + O(s^2)), x ~ N(0,1), and variance 1/g at s = 0: the cost of b bits is 1/g -
1, which is 57 % for one bit (pi/2), 13.3 % for two, 3.6 % for three, 0.96 % for four, 0.25, 0.064, 0.016 and 0.004 %
for five to eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatArray, FloatVector
from quietbit.errors import InvalidParameter, check_int, require

__all__ = ["NormalQuantiser", "normal_quantiser"]

# Positive levels in units of 2^-32, so that every machine has the same; the negative ones mirror them.
# fmt: off
POSITIVE_LEVELS: dict[int, tuple[int, ...]] = {
    1: (3426888095,),
    2: (1944675441, 6487194232),
    3: (1052671483, 3247017958, 5772046400, 9242536424),
    4: (551452454, 1666654756, 2820758935, 4047321442, 5395471909, 6949456311, 8886361323, 11736382841),
    5: (
        282993934, 850626131, 1423258986, 2004459188, 2598170131, 3208923413, 3842127923, 4504490060, 5204660184,
        5954286420, 6769848049, 7676108220, 8713322128, 9954614942, 11558270574, 14004739420,
    ),
    6: (
        143492737, 430691973, 718534729, 1007457531, 1297908392, 1590351852, 1885274484, 2183191065, 2484651597,
        2790249474, 3100631125, 3416507567, 3738668471, 4067999512, 4405504074, 4752330802, 5109809101, 5479495596,
        5863236035, 6263249338, 6682244228, 7123585085, 7591534582, 8091620634, 8631213706, 9220479673, 9874049110,
        10614173284, 11477328728, 12530166755, 13917571176, 16080792511,
    ),
    7: (
        72276437, 216856609, 361518745, 506317727, 651308803, 796547733, 942090941, 1087995674, 1234320165,
        1381123799, 1528467299, 1676412908, 1825024589, 1974368243, 2124511931, 2275526124, 2427483965, 2580461562,
        2734538294, 2889797161, 3046325159, 3204213693, 3363559040, 3524462856, 3687032745, 3851382890, 4017634773,
        4185917964, 4356371038, 4529142594, 4704392423, 4882292849, 5063030257, 5246806863, 5433842760, 5624378302,
        5818676889, 6017028245, 6219752300, 6427203801, 6639777845, 6857916556, 7082117198, 7312942131, 7551031128,
        7797116758, 8052043834, 8316794252, 8592519182, 8880581367, 9182611638, 9500585846, 9836931798, 10194681562,
        10577694562, 10990995349, 11441305564, 11937922837, 12494262044, 13130772233, 13881047415, 14806600270,
        16041430740, 17994599383,
    ),
    8: (
        36276124, 108831822, 181397874, 253981192, 326588696, 399227327, 471904041, 544625825, 617399693, 690232694,
        763131919, 836104502, 909157627, 982298534, 1055534522, 1128872955, 1202321270, 1275886979, 1349577674,
        1423401039, 1497364849, 1571476979, 1645745412, 1720178244, 1794783689, 1869570089, 1944545921, 2019719801,
        2095100497, 2170696934, 2246518203, 2322573570, 2398872484, 2475424590, 2552239735, 2629327981, 2706699614,
        2784365159, 2862335389, 2940621337, 3019234313, 3098185914, 3177488041, 3257152914, 3337193089, 3417621473,
        3498451346, 3579696376, 3661370642, 3743488656, 3826065382, 3909116266, 3992657257, 4076704837, 4161276049,
        4246388529, 4332060535, 4418310990, 4505159512, 4592626459, 4680732969, 4769501008, 4858953420, 4949113977,
        5040007441, 5131659618, 5224097434, 5317348998, 5411443681, 5506412202, 5602286717, 5699100916, 5796890129,
        5895691443, 5995543826, 6096488266, 6198567921, 6301828281, 6406317349, 6512085840, 6619187396, 6727678828,
        6837620377, 6949076012, 7062113751, 7176806024, 7293230077, 7411468419, 7531609329, 7653747423, 7777984289,
        7904429210, 8033199982, 8164423842, 8298238528, 8434793499, 8574251325, 8716789309, 8862601351, 9011900135,
        9164919680, 9321918349, 9483182410, 9649030276, 9819817596, 9995943396, 10177857554, 10366069975, 10561161946,
        10763800336, 10974755545, 11194924455, 11425360184, 11667311209, 11922273671, 12192062618, 12478911101,
        12785611408, 13115722090, 13473881627, 13866302820, 14301590279, 14792175223, 15357033405, 16027384556,
        16860485898, 17981290509, 19772034901,
    ),
}
# fmt: on


@final
@dataclass(frozen=True, slots=True, eq=False)
class NormalQuantiser:
    """2^bits levels; code j is the cell between thresholds j - 1 and j, from the lowest up."""

    bits: int
    thresholds: FloatVector
    levels: FloatVector  # what codes are decoded to: divided by the gain already
    gain: float

    @property
    def cost(self) -> float:
        """The part by which the variance grows."""
        return 1.0 / self.gain - 1.0

    def encode(self, values: FloatArray) -> NDArray[np.uint8]:
        """One code per value; a value on a threshold belongs to the cell above. NaN is refused."""
        given = np.asarray(values, dtype=np.float64)
        if np.any(np.isnan(given)):
            raise InvalidParameter("values must be numbers, got a NaN.")
        return np.searchsorted(self.thresholds, given, side="right").astype(np.uint8)

    def decode(self, codes: NDArray[Any]) -> FloatVector:
        """Return the level of each code."""
        given = np.asarray(codes)
        require(given.dtype.kind in "iu", "type of the codes", str(given.dtype), "whole numbers")
        inside = given.size == 0 or (int(given.min()) >= 0 and int(given.max()) < self.levels.size)
        require(inside, "codes", "others", f"from 0 to {self.levels.size - 1}")
        result: FloatVector = self.levels[given]
        return result


@lru_cache(maxsize=8)
def normal_quantiser(bits: int) -> NormalQuantiser:
    """Return the alphabet of ``bits`` bits, from 1 to 8.

    >>> round(100 * normal_quantiser(3).cost, 2), round(100 * normal_quantiser(4).cost, 2)
    (3.58, 0.96)
    """
    width = check_int(bits, "bits", 1, 8)
    positive = np.array(POSITIVE_LEVELS[width], dtype=np.float64) * 2.0**-32
    plain = np.concatenate([-positive[::-1], positive])
    thresholds = (plain[1:] + plain[:-1]) / 2.0
    density = np.exp(-(thresholds**2) / 2.0) / math.sqrt(2.0 * math.pi)
    # E[x Q(x)] = sum over thresholds of (step of Q there) * phi(threshold).
    gain = float(math.fsum(np.diff(plain) * density))
    levels = plain / gain
    thresholds.setflags(write=False)
    levels.setflags(write=False)
    return NormalQuantiser(width, thresholds, levels, gain)
