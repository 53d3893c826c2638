"""Tests of actors/cluster/reporting."""
