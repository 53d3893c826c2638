"""The ledger's writer: loads the rows that a batch of commands needs, plans and commits it."""
