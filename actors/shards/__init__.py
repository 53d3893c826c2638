"""The shards of one member: the member's lease, the shards that it holds, and their moves."""
