"""The components that come along: a plugin like any other, on the same hooks."""
