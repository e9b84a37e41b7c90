"""One run of a federation, without an engine: its plan, its server's half, its client's half, and its report."""
