"""Tests of actors/transport."""
