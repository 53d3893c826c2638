"""Versions of capabilities: their order, ranges of versions, and breaking changes of schemas."""
