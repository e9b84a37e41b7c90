"""Public mechanisms, and the names needed to write your own; the modules below are private."""

from quietbit.kernel.base import Kernel as Kernel
from quietbit.mechanism.abilities import Ability as Ability
from quietbit.mechanism.abilities import Batches as Batches
from quietbit.mechanism.abilities import SharedRows as SharedRows
from quietbit.mechanism.abilities import Summable as Summable
from quietbit.mechanism.accumulate import code_accumulator as code_accumulator
from quietbit.mechanism.ball import clipped_pieces as clipped_pieces
from quietbit.mechanism.base import Accumulator as Accumulator
from quietbit.mechanism.base import Body as Body
from quietbit.mechanism.base import Error as Error
from quietbit.mechanism.base import Layout as Layout
from quietbit.mechanism.base import Mechanism as Mechanism
from quietbit.mechanism.base import Parts as Parts
from quietbit.mechanism.base import Wrapper as Wrapper
from quietbit.mechanism.family import Choices as Choices
from quietbit.mechanism.family import Family as Family
from quietbit.mechanism.family import SearchedFamily as SearchedFamily
