"""Tests of schemas."""
