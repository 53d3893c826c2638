"""Tests of actors/shards."""
