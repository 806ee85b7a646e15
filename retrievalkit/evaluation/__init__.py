"""`rkit evaluate` and `rkit compare`: metrics of runs."""
