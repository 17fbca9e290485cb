"""The `hgpo` command-line interface."""
