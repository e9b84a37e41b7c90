"""Both ends of the wire: the payload byte by byte, updates to payloads, and payloads to a mean."""
