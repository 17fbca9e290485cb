"""Sections of the settings that the packages which read them import without `hgpo_rllib.config`."""
