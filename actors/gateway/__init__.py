"""A Serve replica's access to the actors and to what the ledger has stored of workflows."""
