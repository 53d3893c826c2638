"""Owners of workflows: their epochs, and claims of what a silent one has."""
