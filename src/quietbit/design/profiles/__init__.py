"""The shipped profiles as data, one line per target; ``quietbit.mechanism.solve_profile`` makes them."""
