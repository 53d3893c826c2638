"""Shards of workflows: which there are, who holds them, when one may be taken."""
