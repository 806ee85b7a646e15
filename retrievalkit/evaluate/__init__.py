"""`rkit evaluate`, `rkit compare` and `rkit analyse-views`: figures of runs and of representations."""
