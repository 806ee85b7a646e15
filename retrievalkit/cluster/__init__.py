"""Work on the machines of a Ray cluster."""

from retrievalkit.cluster.mapping import ClusterOptions, ordered_map

__all__ = ["ClusterOptions", "ordered_map"]
