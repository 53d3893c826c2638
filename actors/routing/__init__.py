"""Routing of requests to owners: the live owners, the map of shards, placement of new workflows."""
