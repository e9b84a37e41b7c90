"""A Flower app for tests: ten clients learn digits in masked sums, and some of them leave."""
