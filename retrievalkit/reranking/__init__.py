"""Re-ranking: a cross-encoder applied to runs and to training examples."""
