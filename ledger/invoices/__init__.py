"""Invoices over settled work."""
