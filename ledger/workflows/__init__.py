"""Workflows: published, advanced, quarantined, and read."""
