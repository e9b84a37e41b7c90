"""NVFlare: private updates by a client filter within the owner's policy, and a server filter."""

from quietbit.federation.batch import dp_sgd_step as dp_sgd_step
from quietbit.federation.batch import private_batch as private_batch
from quietbit.federation.report import Report as Report
from quietbit.nvflare.client import PrivateUplink as PrivateUplink
from quietbit.nvflare.local import LocalPrivacy as LocalPrivacy
from quietbit.nvflare.recipe import add_privacy as add_privacy
from quietbit.nvflare.server import PrivateReceiver as PrivateReceiver
