"""Plots of designs and mechanisms: functions that return matplotlib figures, and one that saves them."""
