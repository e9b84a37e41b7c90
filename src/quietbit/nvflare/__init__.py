"""NVFlare: private updates by a client filter within the owner's policy, and a server filter.

Idea     a job changes by one call, `add_privacy(recipe, settings)`. What the clients' filter
         (`PrivateUplink`) lets out is one packed release and nothing else; the server's
         (`PrivateReceiver`) turns each into an unbiased difference of weights, which any averaging
         workflow takes. Names (`__init__.pyi`) are imported when they are first used.
"""

from quietbit._lazy import attach

RENAMED = {"private_step": "dp_sgd_step", "current_batch": "private_batch"}
__getattr__, __dir__, __all__ = attach(__name__, __file__, ("nvflare", "nvflare"), RENAMED)
