"""Rollouts: groups of episodes, played concurrently, as scored trajectories."""
