"""Members of the cluster and the shards that they hold: registered, taken, given."""
