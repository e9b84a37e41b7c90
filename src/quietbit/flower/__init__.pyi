"""Flower: private updates through an engine; a client mod within the owner's policy, and a strategy wrapper."""

from quietbit.engine.batch import current_batch as current_batch
from quietbit.engine.batch import private_step as private_step
from quietbit.engine.report import Report as Report
from quietbit.flower.client import PrivateUplink as PrivateUplink
from quietbit.flower.strategy import PrivateStrategy as PrivateStrategy
from quietbit.node.policy import SeededRngWarning as SeededRngWarning
from quietbit.node.policy import Simulation as Simulation
from quietbit.node.policy import simulated_directory as simulated_directory
