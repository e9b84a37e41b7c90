"""The laboratory: data sets, models, sweeps, cohort kernels, figures, the report page and the demo."""
