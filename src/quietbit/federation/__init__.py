"""Who trains with whom: cohorts, the round loop, the account of every client, records and sweeps of runs."""
