"""Models: the two-tower retriever and the cross-encoder, their loading and their precision."""
