"""Work on the machines of a Ray cluster."""

from retrievalkit.cluster.mapping import ClusterOptions, check_same_model, spread_map

__all__ = ["ClusterOptions", "check_same_model", "spread_map"]
