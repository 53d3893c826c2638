"""Workflows as their owner's process knows them: one by one, by shard, quarantined, restored."""
