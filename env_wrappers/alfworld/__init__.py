"""ALFWorld: household tasks in text, played on the original TextWorld engine."""
