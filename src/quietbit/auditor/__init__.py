"""The doctor: a self-test of this installation, and exact bounds on a probability from counts."""
