"""Subnets: groups of DIDs that share agents and policies."""
