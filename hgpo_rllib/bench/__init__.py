"""Benchmarks: each compares with its alternative in the same run."""
