"""Losses: from the representations of a batch to a number to minimise."""
