"""Reports about runs: one HTML page, pictures, and an entry for the registry of deployments."""
