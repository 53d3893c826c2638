"""Defects planted one line at a time: what the simulation must be able to see."""
