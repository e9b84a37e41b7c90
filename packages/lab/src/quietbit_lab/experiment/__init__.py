"""Experiments: grids of runs, their records, sweeps that resume, and their results."""
