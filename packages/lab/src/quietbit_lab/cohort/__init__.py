"""Sums over whole cohorts in one pass, for trainings that simulate every client of a round."""
