"""Work on the machines of a Ray cluster."""

from retrievalkit.cluster.actors import Actors
from retrievalkit.cluster.mapping import ClusterOptions, check_same, connected, room, spread_map

__all__ = ["Actors", "ClusterOptions", "check_same", "connected", "room", "spread_map"]
