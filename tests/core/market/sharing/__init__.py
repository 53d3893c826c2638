"""Turns, shares and quotas."""
