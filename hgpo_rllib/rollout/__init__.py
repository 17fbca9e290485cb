"""Rollouts: groups of episodes, driven concurrently, as RLlib multi-agent episodes."""
