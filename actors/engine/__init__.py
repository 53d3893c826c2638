"""Drives workflows: steps state machines, commits commands, recovers from rows; without Ray."""
