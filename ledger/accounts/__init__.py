"""Accounts: deposits, and money as its owners see it."""
