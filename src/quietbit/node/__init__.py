"""What the owner of a device controls: a policy, a ledger that cannot be turned back, and who keeps them.

Names (`__init__.pyi` lists them) are imported when they are first used.
"""

from quietbit._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
