"""`rkit evaluate` and `rkit compare`: figures of runs."""
