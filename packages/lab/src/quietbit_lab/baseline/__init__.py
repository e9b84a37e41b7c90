"""The rest of the field, as baselines: one mechanism, one file, priced by the same ledger as the library's own."""
