"""The commands of the laboratory: train, sweep, figure, report, data and demo."""
