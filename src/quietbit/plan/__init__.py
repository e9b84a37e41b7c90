"""All choices of a run in one place, fixed before data is seen: mechanism, participation, releases, trust."""
