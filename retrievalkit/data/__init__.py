"""What goes in and out: corpora, queries, examples, qrels, runs, vectors; formats told apart by their keys."""
