"""Sections of the settings that other packages import without `hgpo_rllib.config`."""
