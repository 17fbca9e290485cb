"""Benchmarks that compare components with alternatives in the same run."""
