"""Endpoints about peers and the routes to them."""
