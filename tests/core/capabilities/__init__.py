"""Tests of `core/capabilities`."""
