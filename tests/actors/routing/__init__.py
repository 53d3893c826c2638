"""Tests of actors/routing."""
