"""The field's other mechanisms as baselines: one file each, accounted by the same ledger."""
