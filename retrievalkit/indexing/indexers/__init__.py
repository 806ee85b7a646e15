"""Indexers, which build, open and search index folders."""
