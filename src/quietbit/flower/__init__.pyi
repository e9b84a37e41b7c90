"""Flower: an app whose call is the owner's gate, and a strategy wrapper."""

from quietbit.federation.batch import dp_sgd_step as dp_sgd_step
from quietbit.federation.batch import private_batch as private_batch
from quietbit.federation.report import Report as Report
from quietbit.flower.client import PrivateClientApp as PrivateClientApp
from quietbit.flower.strategy import PrivateStrategy as PrivateStrategy
from quietbit.node.policy import SeededRngWarning as SeededRngWarning
from quietbit.node.policy import Simulation as Simulation
from quietbit.node.policy import simulated_members as simulated_members
