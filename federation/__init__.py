"""Connections to other hosts: the egress gate and health probes."""
