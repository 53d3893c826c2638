"""Tests of the market's rules."""
