"""Mechanisms: randomised maps from a ball to codes, each with its certified privacy curve."""

from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.calibrate import Calibration, MechanismName, calibrate
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.gaussian import Gaussian
from quietbit.mechanism.interpolated import Decoder, InterpolatedMVU
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.sign import Sign
from quietbit.mechanism.skellam import Skellam

__all__ = [
    "Ball",
    "Calibration",
    "Decoder",
    "DitheredMVU",
    "Gaussian",
    "InterpolatedMVU",
    "Laplace",
    "Mechanism",
    "MechanismName",
    "Norm",
    "Sign",
    "Skellam",
    "calibrate",
]
