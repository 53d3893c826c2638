"""Tests of the rules of subnets."""
