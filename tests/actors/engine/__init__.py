"""Tests of actors/engine."""
