"""The search for designs, and how good any design or profile could be."""
