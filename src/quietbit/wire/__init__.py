"""Both ends of the wire: what a payload is, byte by byte, and how updates become payloads and payloads a mean."""
