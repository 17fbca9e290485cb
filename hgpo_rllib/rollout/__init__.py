"""Rollouts: play groups of episodes concurrently and score the trajectories.

`HGPOEnvRunner.sample` takes played groups from a `GroupStream`. `GroupPlayer.play_group` plays the
members of a group, each with `play_in_pool`: `play_episode` calls `Agent.act` and the environment
in turn, and `PolicyAgent` gets its responses from the policy server. Each member has a
`Trajectory`.
"""
