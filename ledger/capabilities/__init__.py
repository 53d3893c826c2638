"""Versions of capabilities: published, deprecated, listed."""
