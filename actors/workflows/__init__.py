"""The owner process's workflows: running, grouped by shard, quarantined, restored from rows."""
