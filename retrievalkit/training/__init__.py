"""Training of retrievers and re-rankers, and pre-training of language models: three setups, one training loop."""
