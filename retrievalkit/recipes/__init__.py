"""`rkit run` and `rkit quickstart`: experiments as data, with their steps, variants and tables."""
