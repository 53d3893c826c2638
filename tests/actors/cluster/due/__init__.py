"""Tests of actors/cluster/due."""
