"""One module per section of a run file. `hgpo_rllib.config` puts them together."""
