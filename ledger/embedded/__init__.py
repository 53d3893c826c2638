"""A private Postgres as a child of its owner."""
