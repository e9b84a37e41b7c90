"""Per-sample gradients of torch models, and GroupNorm in place of BatchNorm."""

from quietbit.gradients.norm import group_norm
from quietbit.gradients.rows import SampleGradients, sample_gradients
from quietbit.gradients.trace import Loss, trainable

__all__ = ["Loss", "SampleGradients", "group_norm", "sample_gradients", "trainable"]
