"""Console output during training, and plots and reports of runs."""
