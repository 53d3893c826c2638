"""Tests of what a deployment stands on: Postgres, settings, processes, packaging."""
