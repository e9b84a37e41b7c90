"""Public mechanisms, and the names needed to write your own; the modules below are private.

`__init__.pyi` lists the names; each is imported on first use.
"""

from quietbit._lazy import attach

RENAMED = {
    "LengthBounded": "Mechanism, whose honest_length any mechanism may define",
    "SamplePriced": "Mechanism, whose sample_cost any mechanism may define",
}
__getattr__, __dir__, __all__ = attach(__name__, __file__, renamed=RENAMED)
