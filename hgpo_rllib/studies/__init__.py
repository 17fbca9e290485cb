"""Studies: arms compared over seeds, from a committed file to tables with intervals."""
