"""The ledger: the Postgres schema, the writer, reads of committed rows and the embedded server."""
