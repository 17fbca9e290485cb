"""Training runs and sweeps: preparation, Ray, iterations, files and report."""
