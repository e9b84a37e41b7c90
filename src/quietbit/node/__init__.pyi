"""What the owner of a device controls: the policy, the ledger, and the process that has both."""

from quietbit.node.policy import Policy as Policy
from quietbit.node.policy import Simulation as Simulation
from quietbit.node.policy import init as init
from quietbit.node.sender import PrivateSender as PrivateSender
