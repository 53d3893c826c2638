"""Subnets: what their policies permit."""
