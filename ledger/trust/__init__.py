"""Revocations."""
