"""Poolers turn token states into a representation."""
