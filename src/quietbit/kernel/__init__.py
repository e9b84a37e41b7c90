"""Kernels: the only code that knows devices; all return the same codes for the same words."""
