"""Kernels: the only code that knows about devices; all give the same codes for the same words."""
