"""`rkit evaluate` and `rkit compare`: metrics and paired tests of runs."""
