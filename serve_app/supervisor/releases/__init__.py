"""Releases side by side: which one a deployment runs, and how it is upgraded without a stop."""
