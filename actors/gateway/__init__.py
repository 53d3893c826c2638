"""A Serve replica's calls to the actors, and its reads of workflows that the ledger has stored."""
