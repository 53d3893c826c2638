"""Peers: other Callboard deployments with which this deployment exchanges work."""
