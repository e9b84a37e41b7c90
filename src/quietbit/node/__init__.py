"""What the owner of a device controls: a policy, a ledger that cannot be turned back, and who keeps them."""
