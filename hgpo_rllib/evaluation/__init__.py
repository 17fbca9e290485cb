"""Evaluation of policies and agents by a recorded protocol, and comparison of evaluations."""
