"""Tests of actors/directory."""
