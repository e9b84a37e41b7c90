"""All choices of a private run in one place, fixed before data is seen: mechanism, budget, participation, trust."""
