"""A training run from start to end: preparation, Ray, iterations, files, report."""
