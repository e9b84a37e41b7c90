"""Experiments: grids of runs, their records, sweeps that resume, and what is read from their results."""
