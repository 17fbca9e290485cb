"""Rollouts: play groups of episodes concurrently and score the trajectories."""
