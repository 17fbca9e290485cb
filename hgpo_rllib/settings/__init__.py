"""The sections of a run file. `hgpo_rllib.config` puts them together."""
