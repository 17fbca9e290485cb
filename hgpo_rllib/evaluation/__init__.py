"""Evaluation: inside a run, and of any policy or agent by a protocol that is written down."""
