"""What the owner of a device controls: the policy, the ledger, and the process that has both.

The names, which `__init__.pyi` lists, are imported when they are first used.
"""

from quietbit._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
