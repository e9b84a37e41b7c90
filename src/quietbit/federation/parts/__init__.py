"""What a run can do besides carrying an update: one file per capability, with its section."""
