"""`rkit run` and `rkit quickstart`: experiments as data, their steps, variants and tables."""
