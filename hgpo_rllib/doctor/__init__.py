"""`hgpo doctor`: check whether a run file will work on this machine."""
