"""Identity: the keys of agents."""
