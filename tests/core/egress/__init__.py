"""Tests of routing and egress policy."""
