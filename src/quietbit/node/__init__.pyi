"""What the owner of a device controls: a policy, a ledger that cannot be turned back, and who keeps them."""

from quietbit.node.policy import Policy as Policy
from quietbit.node.policy import Simulation as Simulation
from quietbit.node.policy import init as init
from quietbit.node.release import PrivateSender as PrivateSender
