"""Auctions of nodes: rounds and bids."""
