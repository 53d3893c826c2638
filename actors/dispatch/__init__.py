"""Requests to agents: queues, HTTP, what a reply means, other machines' help."""
