"""The command ``quietbit``: one file per command; what a command knows, the library told it."""
