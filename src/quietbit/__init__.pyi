"""The public surface: verbs, and what people construct. What is not in this list may change."""

from quietbit.design.certify import certify as certify
from quietbit.design.solve import catalogue as catalogue
from quietbit.design.solve import solve as solve
from quietbit.design.table import Design as Design
from quietbit.design.table import DesignSpec as DesignSpec
from quietbit.errors import InvalidParameter as InvalidParameter
from quietbit.errors import InvalidPayload as InvalidPayload
from quietbit.errors import QuietbitError as QuietbitError
from quietbit.federation.compare import compare as compare
from quietbit.federation.moving_clip import MovingClip as MovingClip
from quietbit.federation.plan import Plan as Plan
from quietbit.gradients import group_norm as group_norm
from quietbit.kernel.rng import RandomBits as RandomBits
from quietbit.kernel.rng import secure_rng as secure_rng
from quietbit.kernel.rng import seeded_rng as seeded_rng
from quietbit.mechanism.additive import Gaussian as Gaussian
from quietbit.mechanism.ball import Ball as Ball
from quietbit.mechanism.ball import Norm as Norm
from quietbit.mechanism.base import Mechanism as Mechanism
from quietbit.mechanism.calibrate import calibrate as calibrate
from quietbit.mechanism.forecast import forecast as forecast
from quietbit.mechanism.interpolated import InterpolatedMVU as InterpolatedMVU
from quietbit.mechanism.vector import VectorMVU as VectorMVU
from quietbit.privacy.account import Account as Account
from quietbit.privacy.cost import Cost as Cost
from quietbit.privacy.guarantee import Guarantee as Guarantee
from quietbit.secagg.identity import Identity as Identity
from quietbit.secagg.identity import MemberList as MemberList
from quietbit.secagg.plan import ProtocolError as ProtocolError
from quietbit.secagg.plan import SumPlan as SumPlan
from quietbit.secagg.server import simulate_secure_sum as simulate_secure_sum
from quietbit.target import Adjacency as Adjacency
from quietbit.target import Target as Target
from quietbit.target import Trust as Trust
from quietbit.target import Unit as Unit
from quietbit.wire.uplink import Uplink as Uplink

__version__: str
