"""Shards of workflows: which member holds a shard, and when another member may take it."""
