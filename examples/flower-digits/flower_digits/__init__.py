"""Handwritten digits over Flower, with private one-bit updates."""
