"""Tests of actors/cluster."""
