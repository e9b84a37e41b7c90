"""Secure aggregation: the server learns the sum of the clients' bits and nothing else."""
