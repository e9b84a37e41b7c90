"""All choices of a private run, fixed before data is seen: mechanism, budget, participation, trust."""
