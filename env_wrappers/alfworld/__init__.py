"""ALFWorld: household tasks in text, played on the genuine TextWorld engine."""
