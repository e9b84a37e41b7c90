"""One run of a federation, without an engine: its plan, its two halves, and its report."""

from quietbit._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
