"""Registered prices of capabilities."""
