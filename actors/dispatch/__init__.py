"""Sends requests to agents: queues, HTTP, events of replies, dispatch through other owners."""
