"""Requests to other hosts: the HTTP client, the egress gate, health probes and other requests."""
