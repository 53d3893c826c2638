"""Reads of committed rows, never in the writer's transaction: what those of all features share."""
