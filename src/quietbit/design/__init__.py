"""Designs: probability tables computed offline in double precision."""
