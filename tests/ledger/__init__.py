"""Tests of the ledger against the real Postgres."""
