"""A Flower app for tests: digits over ten clients, with the very updates of the engine-free
simulator.
"""
