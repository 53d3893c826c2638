"""A simulated cluster: members, leases and shards in virtual time, with abstract work."""
