"""Texts become vectors, vectors and texts become indexes, and indexes change."""
