"""Data formats: corpora, queries, examples, qrels, runs and vectors; formats are detected by their keys."""
