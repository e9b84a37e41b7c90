"""NVFlare: private updates through a second engine; a client filter within the owner's policy, and a server filter.

Idea     a job changes by one call, `add_privacy(recipe, settings)`. What the clients' filter (`PrivateUplink`) lets out
         is one packed release and nothing else; the server's (`PrivateReceiver`) turns each into an unbiased difference
         of weights of weight one, which any averaging workflow takes. A site can hold every job to the same rule with
         its own `privacy.json`. Settings, policy, ledger and gatekeeper are the ones that Flower's nodes have.

Names (`__init__.pyi` lists them) are imported when they are first used: this package imports without NVFlare, and says
what is missing.
"""

from quietbit._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, ("nvflare", "nvflare"))
