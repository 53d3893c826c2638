"""Triggers: templates that start workflows, and their runs."""
