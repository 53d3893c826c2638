"""What remembers: the Postgres schema, the one writer, the read models and the private server."""
