"""The embedded Postgres, a child process of its deployment."""
