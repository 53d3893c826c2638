"""What runs: the Ray actors that drive workflows, own the ledger and keep time."""
