"""One run of a federation, without an engine: what a part of your own is made of."""

from quietbit.run.messages import Asked as Asked
from quietbit.run.messages import Release as Release
from quietbit.run.messages import Reply as Reply
from quietbit.run.part import Closed as Closed
from quietbit.run.part import Part as Part
from quietbit.run.part import Scope as Scope
from quietbit.run.report import Report as Report
