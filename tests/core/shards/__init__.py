"""Tests of core/shards."""
