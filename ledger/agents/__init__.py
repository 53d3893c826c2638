"""Agents: their cards, health and reputation."""
