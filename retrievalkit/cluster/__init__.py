"""Work on the machines of a Ray cluster."""

from retrievalkit.cluster.mapping import ClusterOptions, check_same_model, ordered_map

__all__ = ["ClusterOptions", "check_same_model", "ordered_map"]
