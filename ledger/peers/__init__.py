"""Peers: other Callboard deployments, and what this deployment knows of each."""
