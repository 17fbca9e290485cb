"""Evaluation: inside a run, and of any policy or agent by a protocol that is written down."""

EPISODE_FORMAT = "hgpo-evaluated-episode-1"
"""Of the lines of episodes.jsonl."""
