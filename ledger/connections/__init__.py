"""Connections to Postgres: how they are opened, pooled, and shut down when the server is silent."""
