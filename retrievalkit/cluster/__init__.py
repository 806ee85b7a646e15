"""Work on the machines of a Ray cluster."""

from retrievalkit.cluster.actors import Actors
from retrievalkit.cluster.mapping import check_same, connected, room, spread_map
from retrievalkit.cluster.options import ClusterOptions, RayOptions

__all__ = ["Actors", "ClusterOptions", "RayOptions", "check_same", "connected", "room", "spread_map"]
