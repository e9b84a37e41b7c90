"""An auditor: what known updates, sent over the real path, say about a sampler and its claim."""
