"""Losses turn the representations of a batch into a number to minimise."""
