"""The client's operations, declared once for both clients, by topic."""
