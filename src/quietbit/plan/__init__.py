"""Help with the choices of a private run: comparisons, and the rule by which a clip moves."""
