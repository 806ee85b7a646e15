"""`rkit run` and `rkit quickstart`: declarative experiments with steps, variants and result tables."""
