"""Training: of retrievers, of language models on text, and of re-rankers; three preparations, one loop."""
