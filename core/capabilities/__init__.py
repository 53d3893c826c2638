"""Versions of capabilities: their order, their ranges, and what one schema breaks of another."""
