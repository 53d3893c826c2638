"""The running processes: Ray actors that drive workflows, write the ledger and keep time."""
