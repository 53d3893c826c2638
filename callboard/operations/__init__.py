"""The operations of the service that a client offers, declared by topic."""
