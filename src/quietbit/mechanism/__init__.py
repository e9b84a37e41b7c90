"""Mechanisms: randomised maps from a ball to payload bodies, each with its price, its error and its decoder."""
