"""A causal language model over Flower, taught by private updates of a few of its numbers."""
