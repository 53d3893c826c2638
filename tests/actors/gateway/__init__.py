"""Tests of actors/gateway."""
