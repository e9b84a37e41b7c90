"""Mechanisms, and what a mechanism of one's own is made of: these names are public; modules below are not.

Names (`__init__.pyi` lists them) are imported when they are first used.
"""

from quietbit._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
