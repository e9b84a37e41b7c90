"""Private federated training without an engine: the readable reference that engines are held against."""
