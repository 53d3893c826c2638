"""Connections to Postgres: opening, pooling, and cutting them when the server is silent."""
