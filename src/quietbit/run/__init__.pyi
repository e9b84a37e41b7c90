"""One run of a federation, without an engine: what a part of your own is made of."""

from quietbit.run.messages import Asked as Asked
from quietbit.run.messages import Reply as Reply
from quietbit.run.part import OpenRound as OpenRound
from quietbit.run.part import Part as Part
from quietbit.run.report import Report as Report
