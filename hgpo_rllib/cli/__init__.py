"""The `hgpo` command: parse, call, print."""
