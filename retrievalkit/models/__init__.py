"""What computes: the two-tower retriever and the cross-encoder, how they load, and in what precision."""
