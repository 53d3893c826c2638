"""Drives workflows: steps of machines, commands to the ledger, recovery from rows. Knows no Ray."""
