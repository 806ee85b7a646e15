"""Encoding texts, and building, opening and changing indexes."""
