"""Indexers: build, open and search an index folder."""
