"""One run of a federation, without an engine: what a part of your own is made of."""

from quietbit.federation.messages import Asked as Asked
from quietbit.federation.messages import Release as Release
from quietbit.federation.messages import Reply as Reply
from quietbit.federation.part import Closed as Closed
from quietbit.federation.part import Part as Part
from quietbit.federation.part import Scope as Scope
from quietbit.federation.report import Report as Report
