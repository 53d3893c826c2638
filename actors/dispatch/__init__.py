"""Requests to agents: queues, HTTP, the events of replies, dispatch by other machines."""
