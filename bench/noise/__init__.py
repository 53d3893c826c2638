"""One tenant that attacks, one that works, and what the first costs the second."""
