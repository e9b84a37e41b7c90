"""The laboratory: data sets, models, sweeps, cohort kernels, figures, reports and the demo."""
