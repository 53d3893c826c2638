"""Tests of shards, leases and the assignment."""
