"""Processes of a real deployment are killed under load; nothing accepted may be lost."""
