"""Peers: other Callboard deployments that take work from this one and give work to it."""
