"""Designs: numbers to a probability table, offline, in double precision."""
