"""Tests of the rules of triggers."""
