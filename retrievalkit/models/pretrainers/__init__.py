"""Pretrainers: objectives that train an encoder on plain text."""
