"""Tests of actors/dispatch."""
