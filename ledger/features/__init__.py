"""What the ledger stores, one file per feature: its commands, their plans, and its reads."""
