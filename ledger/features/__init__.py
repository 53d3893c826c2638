"""The ledger's features, one per file: its commands, their plans, and its reads."""
