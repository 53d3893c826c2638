"""Dumps of whole ledgers, and what makes and finishes them."""
