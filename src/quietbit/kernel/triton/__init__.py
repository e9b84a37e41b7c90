"""The kernel for GPUs, in Triton. Only `kernel/select.py` imports this folder."""
