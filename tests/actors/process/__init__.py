"""Tests of actors/process."""
