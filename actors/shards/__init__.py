"""The shards of one member: its lease, what it holds, how shards come and go."""
